"""gist: between its two uses, hold a feature map encoded. Jain et al., "Gist: Efficient Data Encoding for Deep Neural
Network Training", ISCA 2018, sections 3 and 4.

For every map that forward leaves for backward, the first of these that applies and is shorter:

    only a shape is read        dropped                                     (beyond the paper)
    a sign, a yes or no         one bit per element                         Binarize
    a place in a pool's window  4 or 8 bits per output                      Binarize
    many zeros                  the others, with a bit mask or as CSR       SSDC, sparse storage and dense compute
    with a lossy format         the values in fp16, fp10 or fp8             DPR, delayed precision reduction

Encoding happens after the last forward use, decoding before the first backward use; where every reader has a form that
takes the encoding itself, nothing is decoded. `gist` is lossless; `gist-fp16`, `gist-fp10` and `gist-fp8` round.

Where we leave the paper: it also stores the outputs of pools sparsely. Of four numbers, one is rarely zero: densities
between 0.56 and 0.998 were measured, so pools' outputs stay dense unless a lossy format may shorten them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from vdnn.codecs import CODECS, Codec, codec_for
from vdnn.codecs.bool_mask import detail_of_alphabet
from vdnn.errors import InvalidInput
from vdnn.ir import Detail, Need, Storage
from vdnn.plan.model.actions import Decision, Drop, Encode
from vdnn.plan.model.codec_time import codec_seconds
from vdnn.plan.model.problem import Problem
from vdnn.plan.model.stashes import Stash, stashes
from vdnn.plan.plan import Plan
from vdnn.plan.shared.infeasible import within_budget
from vdnn.plan.strategies.strategy import Strategy

_WAY_OUT = "allow rounding with lossy='fp16', 'fp10' or 'fp8', or choose 'offload'"

MIN_ROUNDED_NBYTES = 256
"""Below this a storage is some numbers, not a map: rounding them frees nothing."""

_PARTIAL = {Need.SIGN: "sign-mask", Need.BOOL: "bool-mask", Need.WINDOW_INDEX: "window-index"}


def solve(problem: Problem) -> Plan:
    """Every encoding that is shorter than its map; lossy ones if the problem allows them."""
    decisions = tuple(
        decision for stash in stashes(problem.graph) if (decision := encoding_decision(problem, stash)) is not None
    )
    name = "gist" if problem.lossy is None else f"gist-{problem.lossy}"
    return within_budget(Plan(problem, name, decisions), _WAY_OUT)


def solve_fp16(problem: Problem) -> Plan:
    return solve(_allowing("fp16", problem))


def solve_fp10(problem: Problem) -> Plan:
    return solve(_allowing("fp10", problem))


def solve_fp8(problem: Problem) -> Plan:
    return solve(_allowing("fp8", problem))


def _allowing(format: str, problem: Problem) -> Problem:
    """The strategy's name allows the loss; a problem that allows another one is a contradiction."""
    if problem.lossy not in (None, format):
        raise InvalidInput(
            f"strategy 'gist-{format}' rounds to {format}, but lossy={problem.lossy!r} was given: say one"
        )
    return replace(problem, lossy=format)


def encoding_decision(problem: Problem, stash: Stash) -> Decision | None:
    """What Gist does with a stash; None: no encoding is shorter."""
    storage = problem.graph.storages[stash.storage]
    if stash.back is None:
        return Decision(stash.storage, Drop(stash.leave), "backward reads its shape at most")
    codec, name, reason = _shortest(problem, stash, storage)
    if codec is None or codec.nbytes >= storage.nbytes:
        return None
    encode_s, decode_s = codec_seconds(problem.hardware, name, codec)
    direct = stash.reads_encoded and codec.has_fixed_size and codec.is_exact
    action = Encode(
        name, codec.nbytes, stash.leave, stash.back, encode_s, 0.0 if direct else decode_s, codec.detail, direct
    )
    return Decision(stash.storage, action, reason)


def _shortest(problem: Problem, stash: Stash, storage: Storage) -> tuple[Codec | None, str, str]:
    """Of the codecs that keep what is needed: the one with the fewest bytes, and the rule that names it."""
    offered = [
        (codec, name, reason)
        for name, detail, reason in _candidates(problem, stash, storage)
        if (codec := codec_for(name, storage, detail)).is_possible
    ]
    return min(offered, key=lambda offer: offer[0].nbytes, default=(None, "", ""))


def _candidates(problem: Problem, stash: Stash, storage: Storage) -> Iterator[tuple[str, Detail, str]]:
    if len(storage.alphabet) == 2:
        yield "bool-mask", detail_of_alphabet(storage), "its elements are one of two numbers"
        return
    if stash.information.is_partial:
        need = stash.information.need
        yield _PARTIAL[need], stash.information.detail, f"backward needs of each element: {need}"
        return
    may_round = problem.lossy is not None and stash.is_map and storage.nbytes >= MIN_ROUNDED_NBYTES
    formats = ["", f"-{problem.lossy}"] if may_round else [""]
    if stash.has_zeros:
        for form in ("sparse", "csr"):
            for format in formats:
                if form + format in CODECS:  # CSR has not every format: its rows end anywhere, and fp10 has groups
                    yield form + format, (problem.density,), f"at most {problem.density:.0%} of it is not zero, by plan"
    if formats[1:]:
        yield str(problem.lossy), (), f"rounded to {problem.lossy} after its last use in forward"


STRATEGIES = (
    Strategy("gist", solve, may_round=True),
    Strategy("gist-fp16", solve_fp16, may_round=True, always_rounds_to="fp16"),
    Strategy("gist-fp10", solve_fp10, may_round=True, always_rounds_to="fp10"),
    Strategy("gist-fp8", solve_fp8, may_round=True, always_rounds_to="fp8"),
)
