"""How sparse data is cut and how large its parts are.

Enters: a number of elements, a value format. Leaves: counts and sizes. Two forms, both of the elements with any bit
set, so that -0.0 and NaN survive:

    mask   one bit per element; values in element order; where the values of each block of 4096 elements begin
    CSR    as Gist published it: rows of 256 elements, so that a column fits a byte; row offsets; columns; values

The one idea of the mask form: a bit per element costs 1/32 of the data whatever the sparsity, where a byte per value
costs as much from 12.5 % non-zeros on; blocks make both directions parallel. In fp10 each block is padded to whole
words, so no word is shared between blocks. The value format "raw" is the element's own bytes.
"""

from __future__ import annotations

from vdnn.codecs.kernels.formats import format_of, reduced_nbytes

ELEMENTS_PER_BLOCK = 4096  # a block's values stay within the L1 cache, its offset costs 2 % of its bits' bytes
ROW = 256  # elements: Gist's narrow value optimisation, a column is one byte
RAW = "raw"
MASK_FORMATS = (RAW, "fp16", "bf16", "fp10", "fp8")
CSR_FORMATS = (RAW, "fp16", "bf16", "fp8")  # fp10 packs three to a word, and rows would have to be padded to that


def mask_nbytes(n: int) -> int:
    return -(-n // 8)


def num_blocks(n: int) -> int:
    return -(-n // ELEMENTS_PER_BLOCK)


def num_rows(n: int) -> int:
    return -(-n // ROW)


def values_nbytes(n: int, element_nbytes: int, format: str) -> int:
    """Bytes of n values of one block, or of any run where nothing is padded."""
    return n * element_nbytes if format == RAW else reduced_nbytes(n, format)


def value_nbytes(element_nbytes: int, format: str) -> float:
    """Bytes of one value among many: in fp10 a third of a word."""
    return element_nbytes if format == RAW else format_of(format).group_nbytes / format_of(format).values_per_group


def padding_nbytes(format: str) -> int:
    """Bytes that a block may take beyond its share: where values are packed in groups, it may leave one unfilled."""
    return 0 if format == RAW or format_of(format).values_per_group == 1 else format_of(format).group_nbytes


def largest_values_nbytes(n: int, element_nbytes: int, format: str) -> int:
    """Bytes of the mask form's values when no element is zero."""
    whole, rest = divmod(n, ELEMENTS_PER_BLOCK)
    return whole * values_nbytes(ELEMENTS_PER_BLOCK, element_nbytes, format) + values_nbytes(
        rest, element_nbytes, format
    )


def csr_value_nbytes(format: str) -> int:
    require_format(format, CSR_FORMATS, "the CSR form")
    return 4 if format == RAW else format_of(format).group_nbytes


def require_format(format: str, allowed: tuple[str, ...], what: str) -> None:
    """A ValueError when `what` has no such value format."""
    if format not in allowed:
        raise ValueError(f"{what} keeps values as {', '.join(allowed)}, not as {format!r}.")
