"""What can be in a scene and the words for it; the first word of each row is the common one."""

from __future__ import annotations

# shape -> (singular, plural) of each word, from the most frequent shape to the rarest
NOUNS: dict[str, tuple[tuple[str, str], ...]] = {
    "circle": (("circle", "circles"), ("disc", "discs")),
    "square": (("square", "squares"), ("box", "boxes")),
    "star": (("star", "stars"),),
    "triangle": (("triangle", "triangles"),),
    "heart": (("heart", "hearts"),),
    "ring": (("ring", "rings"), ("hoop", "hoops")),
    "cross": (("cross", "crosses"), ("plus", "pluses")),
    "moon": (("moon", "moons"), ("crescent", "crescents")),
    "arrow": (("arrow", "arrows"),),
    "diamond": (("diamond", "diamonds"),),
}
COLOURS: dict[str, tuple[str, ...]] = {
    "blue": ("blue",),
    "red": ("red",),
    "yellow": ("yellow", "golden"),
    "green": ("green",),
    "purple": ("purple", "violet"),
    "orange": ("orange",),
    "white": ("white",),
    "black": ("black", "dark"),
}
TEXTURES: dict[str, tuple[str, ...]] = {
    "plain": ("plain",),
    "striped": ("striped",),
    "dotted": ("dotted", "spotted"),
}
TEXTURE_ENDINGS = {"striped": ("with", "stripes"), "dotted": ("with", "dots")}
SIZES: dict[str, tuple[str, ...]] = {
    "small": ("small", "little"),
    "medium": ("medium",),
    "large": ("big", "large"),
}
ANY_SHAPE = "shape"  # says no more than that something is there
COUNTS = {2: "two", 3: "three"}

# shapes that are often seen together
PARTNERS: tuple[tuple[str, str], ...] = (
    ("star", "moon"),
    ("circle", "cross"),
    ("square", "triangle"),
    ("heart", "arrow"),
    ("ring", "diamond"),
)

# relation -> the phrases that say it of (first, second)
SIGNED: dict[str, tuple[str, ...]] = {
    "left of": ("left of", "to the left of", "on the left of"),
    "right of": ("right of", "to the right of", "on the right of"),
    "above": ("above", "over"),
    "below": ("below", "under", "beneath"),
}
UNSIGNED: dict[str, tuple[str, ...]] = {
    "near": ("near", "close to"),
    "far from": ("far from", "far away from"),
    "beside": ("beside", "next to"),
    "stacked with": ("stacked with",),
    "inside": ("inside", "within"),
    "bigger than": ("bigger than", "larger than"),
    "aligned with": ("aligned with", "in line with"),
    "between": ("between", "in between"),
}
RELATIONS: dict[str, tuple[str, ...]] = {**SIGNED, **UNSIGNED}
# relation -> the phrases that say it of (second, first)
TURNED: dict[str, tuple[str, ...]] = {
    "inside": ("around", "surrounding"),
    "bigger than": ("smaller than",),
}
SYMMETRIC = ("far from", "beside", "stacked with", "aligned with")

OPENERS_OF_ONE = ("there is", "a picture of", "an image of", "we can see", "we see")
OPENERS_OF_MANY = ("there are", "a picture of", "an image of", "we can see", "we see")
VERBS = ("is", "sits", "lies")
JOINERS = ("and", "while")

ATTRIBUTES: dict[str, str] = {
    word: name
    for table in (COLOURS, TEXTURES, SIZES)
    for name, words in table.items()
    for word in words
}
SINGULARS: dict[str, str] = {one: name for name, rows in NOUNS.items() for one, _ in rows}
PLURALS: dict[str, str] = {many: name for name, rows in NOUNS.items() for _, many in rows}
# phrase as words -> (relation, whether its two sides are turned)
PHRASES: dict[tuple[str, ...], tuple[str, bool]] = {
    tuple(phrase.split()): (name, turned)
    for table, turned in ((RELATIONS, False), (TURNED, True))
    for name, phrases in table.items()
    for phrase in phrases
}


def article(word: str) -> str:
    """`a` or `an`, as the next word wants it."""
    return "an" if word[0] in "aeiou" else "a"
