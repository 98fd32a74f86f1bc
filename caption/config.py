"""What a training run is told, beside the model's own sizes."""

from __future__ import annotations

from dataclasses import dataclass, field

from caption.errors import CaptionError


def choice(key: str, value: str, allowed: tuple[str, ...]) -> None:
    """Raise CaptionError unless the value of a setting is one of those allowed."""
    if value not in allowed:
        raise CaptionError(f"{key} is {value!r}, wanted one of {', '.join(allowed)}")


def _positive(**values: float | None) -> None:
    for key, value in values.items():
        if value is not None and not value > 0:
            raise CaptionError(f"{key.replace('__', '.')} is {value}, wanted more than 0")


def _not_negative(**values: float) -> None:
    for key, value in values.items():
        if not value >= 0:
            raise CaptionError(f"{key.replace('__', '.')} is {value}, wanted 0 or more")


def _share(**values: float) -> None:
    for key, value in values.items():
        if not 0 <= value < 1:
            raise CaptionError(f"{key.replace('__', '.')} is {value}, wanted 0 or more, below 1")


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Captions and features."""

    tokenizer: str = "ptb"  # `ptb`: as evaluation; `m2`: as M2's release; `file`: the file's tokens
    max_words: int = 20  # captions are cut behind so many words
    captions: int | None = None  # only the first so many captions of an image (M2's release: 5)
    train_images: int | None = None  # only the first so many training images
    validation_images: int | None = None  # only the first so many validation images
    shuffle_features: bool = False  # give each image another's features: a language-only model
    views: tuple[str, ...] = ()  # caches of other views of the training images, drawn by lot
    hidden_rows: float = 0.0  # share of an image's rows hidden by lot in training

    def __post_init__(self) -> None:
        choice("data.tokenizer", self.tokenizer, ("ptb", "m2", "file"))
        _positive(
            data__max_words=self.max_words,
            data__captions=self.captions,
            data__train_images=self.train_images,
            data__validation_images=self.validation_images,
        )
        _share(data__hidden_rows=self.hidden_rows)


@dataclass(frozen=True, kw_only=True)
class VocabularyConfig:
    """Which words the captioner knows."""

    min_count: int = 5  # a word must be seen so often (M2: 5)
    splits: tuple[str, ...] = ("train",)  # counted splits; M2's papers used train and val
    vectors: str | None = None  # text file of word vectors (GloVe's), for model.vectors
    extra: str | None = None  # file of words to know beside those, a line each; with vectors only
    without_vector: float = 0.1  # largest share of the captions' words to be learned without one

    def __post_init__(self) -> None:
        _positive(vocabulary__min_count=self.min_count)
        _share(vocabulary__without_vector=self.without_vector)
        if self.extra is not None and self.vectors is None:
            raise CaptionError(
                f"vocabulary.extra is {self.extra!r} without vocabulary.vectors: no caption teaches"
                " these words, so they need vectors; give the file: -o vocabulary.vectors=FILE"
            )


@dataclass(frozen=True, kw_only=True)
class CrossEntropyConfig:
    """The first stage."""

    epochs: int = 30  # at most
    patience: int | None = 5  # stop after so many epochs without a better CIDEr-D; null: never
    images: int = 10  # images in a batch
    captions: int = 5  # captions of each image in a batch; 1 draws single (image, caption) pairs
    learning_rate: float = 4.4e-4  # at the peak
    warmup: int = 10000  # steps up to the peak of `noam`, `m2` and `linear`
    schedule: str = "noam"  # `noam`, `m2`: inverse root; `linear`: to `decay_to`; `epochs`: halved
    decay_to: float = 0.0  # share of the peak at the last step of `linear`
    rise_epochs: int = 3  # of `epochs`: the first epoch at the peak
    hold_epochs: int = 6  # of `epochs`: the last epoch at the peak
    halve_epochs: int = 3  # of `epochs`: then the rate is halved every so many epochs
    betas: tuple[float, float] = (0.9, 0.98)  # of Adam
    epsilon: float = 1e-8  # of Adam
    weight_decay: float = 0.0  # of AdamW
    clip: float | None = None  # largest gradient norm
    smoothing: float = 0.0  # label smoothing

    def __post_init__(self) -> None:
        choice("xe.schedule", self.schedule, ("noam", "m2", "linear", "epochs"))
        _positive(
            xe__epochs=self.epochs,
            xe__images=self.images,
            xe__captions=self.captions,
            xe__learning_rate=self.learning_rate,
            xe__patience=self.patience,
            xe__rise_epochs=self.rise_epochs,
            xe__halve_epochs=self.halve_epochs,
            xe__epsilon=self.epsilon,
            xe__clip=self.clip,
        )
        _not_negative(
            xe__warmup=self.warmup,
            xe__hold_epochs=self.hold_epochs,
            xe__decay_to=self.decay_to,
            xe__weight_decay=self.weight_decay,
        )
        _share(**{f"xe__betas[{n}]": beta for n, beta in enumerate(self.betas)})
        _share(xe__smoothing=self.smoothing)


@dataclass(frozen=True, kw_only=True)
class SelfCriticalConfig:
    """The second stage."""

    epochs: int = 0  # at most; 0 leaves the stage out
    patience: int | None = 5  # stop after so many epochs without a better CIDEr-D; null: never
    images: int = 10  # images in a batch
    samples: int = 5  # captions per image: beams, or draws
    baseline: str = "beams"  # `beams`: their mean reward; `greedy`: classic; `draws`: of the others
    dropout: bool = False  # sample with dropout on (M2's release)
    learning_rate: float = 5e-6  # constant
    betas: tuple[float, float] = (0.9, 0.999)  # of Adam
    clip: float | None = None  # largest gradient norm
    document: str = "caption"  # of the reward's document frequencies: `caption` (M2) or `image`
    eos: bool = False  # count the end of the sentence as a word of the reward

    def __post_init__(self) -> None:
        choice("scst.baseline", self.baseline, ("beams", "greedy", "draws"))
        choice("scst.document", self.document, ("caption", "image"))
        _positive(
            scst__images=self.images,
            scst__samples=self.samples,
            scst__learning_rate=self.learning_rate,
            scst__patience=self.patience,
            scst__clip=self.clip,
        )
        _not_negative(scst__epochs=self.epochs)
        _share(**{f"scst__betas[{n}]": beta for n, beta in enumerate(self.betas)})
        if self.baseline != "greedy" and self.samples < 2:
            raise CaptionError(
                f"scst.samples is {self.samples} with scst.baseline {self.baseline!r}, wanted 2 or"
                " more: one caption has no others to be better than"
            )


@dataclass(frozen=True, kw_only=True)
class DecodingConfig:
    """Validation, evaluation and self-critical sampling."""

    beam: int = 5  # beams of the beam search
    max_words: int = 20  # longest caption, end of sentence included
    images: int = 50  # images decoded at once
    collapse: bool = False  # a word repeated at once is written once (M2's release, to be scored)

    def __post_init__(self) -> None:
        _positive(
            decoding__beam=self.beam,
            decoding__max_words=self.max_words,
            decoding__images=self.images,
        )


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """Both stages and what surrounds them."""

    seed: int = 1  # of weights, order of the images and draws
    data: DataConfig = field(default_factory=DataConfig)
    vocabulary: VocabularyConfig = field(default_factory=VocabularyConfig)
    xe: CrossEntropyConfig = field(default_factory=CrossEntropyConfig)
    scst: SelfCriticalConfig = field(default_factory=SelfCriticalConfig)
    decoding: DecodingConfig = field(default_factory=DecodingConfig)
    average: float = 0.0  # decay of the weights' running mean, which is validated and kept; 0: none
    precision: str = "float32"  # or `bfloat16`: autocast of the forward pass
    save_every: float = 120.0  # seconds between checkpoints inside an epoch

    def __post_init__(self) -> None:
        choice("precision", self.precision, ("float32", "bfloat16"))
        _not_negative(save_every=self.save_every)
        _share(average=self.average)
        if not 0 <= self.seed < 2**32:
            raise CaptionError(f"seed is {self.seed}, wanted 0 to {2**32 - 1}")
        if self.decoding.max_words < 2:
            raise CaptionError(
                f"decoding.max_words is {self.decoding.max_words}, wanted 2 or more: room for a"
                " word and its end"
            )
