"""Every error code of a spec file, with one line on what it means. Codes are stable: tests and tools rely on them."""

from __future__ import annotations

CODES: dict[str, str] = {
    "E-FILE": "The spec file cannot be read, or is not UTF-8 text.",
    "E-TOML": "The file is not valid TOML.",
    "E-TABLE": "A table (or top-level key) that the format does not have.",
    "E-KEY": "A key that its table does not have.",
    "E-MISSING": "A table or key that the format demands is absent.",
    "E-TYPE": "A value of the wrong TOML type, for example a number where a string is due.",
    "E-VALUE": "A value of the right type that is not one of those allowed.",
    "E-FORMAT": "The file's format version is not one that this release reads.",
    "E-DIM": "A dimension symbol that [dims] does not declare.",
    "E-GATE": "A log gate without the range <= 0: safe exponents rest on it.",
    "E-LEX": "A character that is no part of the expression language.",
    "E-SYNTAX": "An expression that does not follow the grammar.",
    "E-SIZE": "A file, expression or integer above its size limit.",
    "E-DEPTH": "An expression (or TOML value) nested deeper than the limit.",
    "E-NAME": "A name that is not defined anywhere in its table.",
    "E-ORDER": "A line that uses itself or a line below it.",
    "E-REDEF": "A name that is already taken.",
    "E-FUNC": "A function that the expression language does not have.",
    "E-ARITY": "A function called with the wrong number of arguments.",
    "E-SHAPE": "Operands, arguments or outputs whose shapes do not fit.",
    "E-STRUCT": "The inverse of something that is not strictly lower triangular.",
    "E-SCALE": "An integer used as a matrix; it may only multiply one.",
    "E-LOGGATE": "A cumulative log gate outside the gate functions, or a gate function of something else.",
    "E-UNUSED": "An input, or the state, that the outputs do not depend on.",
    "E-OUTPUT": "[outputs] names something that is not a stage.",
    "E-GRAD": "[grad] names something that is not a tensor input or the state, or names it twice.",
    "E-DUPLICATE": "Two spec files define an operator of the same name.",
    "E-PROOF": "The chunk stages do not compute what the token recurrence computes.",
}
