"""The official PTB tokenizer (Stanford CoreNLP 3.4.1 in Java), to check the one in Python by.

It runs as a process of its own (GPL), once per call.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from evaluate.errors import EvaluateError
from evaluate.java import ENGLISH, find_java, run, wheel_file
from evaluate.tokenizer import REMOVED

_JAR = "tokenizer/stanford-corenlp-3.4.1.jar"
# The program ends a line at each of these, so one inside a caption would shift all later ones.
_LINE_BREAKS = re.compile("[\n\r\v\f\u2028\u2029]")
_SECONDS_PER_CAPTION = 0.01
_SECONDS_TO_START = 120.0


def java_tokenize(captions: Sequence[str]) -> list[str]:
    """As `evaluate.tokenizer.ptb_tokenize`, by the official program.

    Raises NotAvailable without Java or its jar, EvaluateError when the program fails.
    """
    if not captions:
        return []
    # No line break behind the last caption: a few rules look at what follows, as the official
    # evaluation's program does.
    text = "\n".join(_LINE_BREAKS.sub(" ", caption) for caption in captions)
    command = [str(find_java().path), *ENGLISH, "-cp", str(wheel_file(_JAR))]
    command += ["edu.stanford.nlp.process.PTBTokenizer", "-preserveLines", "-lowerCase"]
    limit = _SECONDS_TO_START + _SECONDS_PER_CAPTION * len(captions)
    answer = run("the Java tokenizer", command, text.encode("utf-8", "replace"), limit)
    lines = answer.decode("utf-8", "replace").split("\n")
    if len(lines) != len(captions):
        raise EvaluateError(
            f"the Java tokenizer gave {len(lines)} lines for {len(captions)} captions"
        )
    return [" ".join(t for t in line.rstrip().split(" ") if t not in REMOVED) for line in lines]
