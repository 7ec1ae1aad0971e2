"""What single networks of the zoo compute, held against their papers and against torch's own modules."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from vdnn.models import MODELS, load
from vdnn.models.alexnet import AlexNet
from vdnn.models.biglstm import BigLSTM, SampledSoftmax
from vdnn.models.gnmt import GNMT
from vdnn.models.gpt2 import GPT2
from vdnn.models.inception_v3 import InceptionV3
from vdnn.models.lstm import LSTMLayer


def test_alexnet_with_lrn_calls_local_response_norm_twice_and_without_it_never(monkeypatch: pytest.MonkeyPatch) -> None:
    original, seen = nn.functional.local_response_norm, []

    def counting(images: torch.Tensor, size: int, *constants: float) -> torch.Tensor:
        seen.append(images.shape[1])
        return original(images, size, *constants)

    monkeypatch.setattr(nn.functional, "local_response_norm", counting)
    images = torch.randn(1, 3, 99, 99)
    AlexNet(width=12, hidden=8, num_classes=3)(images)
    assert seen == []
    AlexNet(width=12, hidden=8, num_classes=3, lrn=True)(images)
    assert seen == [12, 32]


def test_local_response_norm_is_the_papers_formula() -> None:
    """b = a / (2 + 1e-4 * the sum of a^2 over five neighbouring channels) ^ 0.75, section 3.3 of the AlexNet paper."""
    norm = next(m for m in AlexNet(width=12, hidden=8, lrn=True).modules() if isinstance(m, nn.LocalResponseNorm))
    a = torch.randn(1, 8, 2, 2, dtype=torch.float64) * 30
    expected = torch.stack(
        [a[:, c] / (2 + 1e-4 * (a[:, max(0, c - 2) : c + 3] ** 2).sum(1)) ** 0.75 for c in range(8)], dim=1
    )
    torch.testing.assert_close(norm(a), expected)


def test_inception_v3_returns_its_side_classifier_in_training_only() -> None:
    with torch.device("meta"):
        model, images = InceptionV3(divisor=16, num_classes=10), torch.randn(2, 3, 299, 299)
        assert [tuple(output.shape) for output in model(images)] == [(2, 10), (2, 10)]
        assert model.eval()(images).shape == (2, 10)


def test_a_single_image_is_too_few_for_inception_v3s_side_classifier() -> None:
    with pytest.raises(ValueError, match="inception-v3 trains with batches of 2 or more, not 1"):
        load("inception-v3", 1, device="meta")


@pytest.mark.filterwarnings("ignore:LSTM with projections")  # torch's own takes another path then, and says so
@pytest.mark.parametrize("projection", [None, 3])
def test_an_lstm_layer_computes_what_torchs_lstm_does(projection: int | None) -> None:
    torch.manual_seed(0)
    layer, reference = LSTMLayer(4, 5, projection=projection), nn.LSTM(4, 5, proj_size=projection or 0)
    state: dict[str, torch.Tensor] = {"weight_ih_l0": layer.from_input.weight, "bias_ih_l0": layer.from_input.bias}
    state |= {"weight_hh_l0": layer.from_output.weight, "bias_hh_l0": torch.zeros(20)}
    if projection:
        state["weight_hr_l0"] = layer.project.get_parameter("weight")
    reference.load_state_dict(state)
    x = torch.randn(6, 2, 4)
    torch.testing.assert_close(layer(x), reference(x)[0])


def test_biglstm_scores_the_truth_and_its_negatives_in_training_and_every_word_otherwise() -> None:
    model = BigLSTM(vocabulary=50, units=8, projection=4, negatives=7)
    words = torch.randint(50, (2, 3))
    assert model(words, words).shape == (2, 3, 1 + 7)
    assert model(words).shape == (2, 3, 50)


def test_a_draw_that_is_the_true_word_does_not_compete_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    softmax = SampledSoftmax(vocabulary=9, width=4, negatives=4)
    monkeypatch.setattr(softmax, "draw", lambda device: torch.tensor([5, 0, 5, 2]))
    scores = softmax(torch.randn(1, 2, 4), torch.tensor([[5, 7]]))
    assert scores.isneginf().tolist() == [[[False, True, False, True, False], [False] * 5]]


def test_negatives_are_drawn_log_uniformly_as_their_correction_assumes() -> None:
    torch.manual_seed(0)
    softmax = SampledSoftmax(vocabulary=20, width=1, negatives=200_000)
    counts = torch.bincount(softmax.draw(torch.device("cpu")), minlength=20).float()
    torch.testing.assert_close(counts, softmax.log_expected(torch.arange(20)).exp(), rtol=0.05, atol=0)


def test_gnmt_gives_a_score_to_every_word_at_every_target_position() -> None:
    with torch.device("meta"):
        source, target = torch.randint(90, (2, 7)), torch.randint(90, (2, 5))
        assert GNMT(vocabulary=90, width=8, depth=4)(source, target).shape == (2, 5, 90)


def test_gnmts_translation_does_not_look_ahead_and_its_encoder_reads_to_the_end() -> None:
    torch.manual_seed(0)
    model = GNMT(vocabulary=30, width=8, depth=4).eval()
    source, target = torch.randint(30, (1, 6)), torch.randint(30, (1, 5))
    other_source, other_target = source.clone(), target.clone()
    other_source[0, -1], other_target[0, -1] = (source[0, -1] + 1) % 30, (target[0, -1] + 1) % 30
    scores = model(source, target)
    assert torch.equal(scores[:, :-1], model(source, other_target)[:, :-1])
    assert not torch.equal(scores[:, 0], model(other_source, target)[:, 0])


def test_gpt2_does_not_look_ahead() -> None:
    torch.manual_seed(0)
    model = GPT2(width=16, depth=2, heads=2, length=8, vocabulary=30).eval()
    tokens = torch.randint(30, (1, 8))
    other = tokens.clone()
    other[0, -1] = (tokens[0, -1] + 1) % 30
    torch.testing.assert_close(model(tokens)[:, :-1], model(other)[:, :-1])


def test_gpt2s_output_table_is_its_input_table() -> None:
    model = MODELS["gpt2"].small().build()
    assert isinstance(model, GPT2)
    assert model.head.weight is model.tokens.weight
