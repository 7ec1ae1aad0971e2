/* Where an accelerator's kernel returns another shape or layout than the CPU's. torch's tracer knows two kinds of devices,
   the CPU and all others: what it expects of those, they return. */

#include "vdev.h"

namespace vdev {

namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
constexpr int64_t kMax = 2; /* the mode of an embedding bag */

OptionalTensor alias_or_none(Aliases& aliases, const OptionalTensor& tensor) {
  return tensor && tensor->defined() ? OptionalTensor(aliases.of(*tensor)) : std::nullopt;
}

/* Its statistics are there in evaluation too: the running ones. */
std::tuple<Tensor, Tensor, Tensor> batch_norm(
    const Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias, const OptionalTensor& mean,
    const OptionalTensor& variance, bool training, double momentum, double eps) {
  Aliases aliases(input.device().index());
  auto [output, saved_mean, saved_scale] = run_now(input.device().index(), [&] {
    auto running_mean = alias_or_none(aliases, mean), running_variance = alias_or_none(aliases, variance);
    auto made = at::native_batch_norm(
        aliases.of(input), alias_or_none(aliases, weight), alias_or_none(aliases, bias), running_mean, running_variance,
        training, momentum, eps);
    if (training) return made;
    return std::make_tuple(std::get<0>(made), running_mean->clone(), at::rsqrt(*running_variance + eps));
  });
  return {aliases.result(output), aliases.result(saved_mean), aliases.result(saved_scale)};
}

std::tuple<Tensor, Tensor, Tensor> batch_norm_in_evaluation(
    const Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias, const Tensor& mean,
    const Tensor& variance, double momentum, double eps) {
  return batch_norm(input, weight, bias, mean, variance, false, momentum, eps);
}

Tensor dropout_backward(const Tensor& grad, const Tensor& mask, double scale) {
  Aliases aliases(grad.device().index());
  return aliases.result(run_now(grad.device().index(), [&] {
    auto by_input = at::native_dropout_backward(aliases.of(grad), aliases.of(mask), scale);
    return by_input.contiguous(grad.suggest_memory_format());
  }));
}

/* Without a maximum there are no places of one; and the bag of each index is always there. */
std::tuple<Tensor, Tensor, Tensor, Tensor> embedding_bag(
    const Tensor& weight, const Tensor& indices, const Tensor& offsets, bool by_frequency, int64_t mode, bool sparse,
    const OptionalTensor& per_sample, bool include_last_offset, int64_t padding_index) {
  Aliases aliases(weight.device().index());
  auto [output, bags, sizes, places] = run_now(weight.device().index(), [&] {
    auto [output, bags, sizes, places] = at::_embedding_bag(
        aliases.of(weight), aliases.of(indices), aliases.of(offsets), by_frequency, mode, sparse,
        alias_or_none(aliases, per_sample), include_last_offset, padding_index);
    if (bags.numel() == 0) {
      auto order = at::arange(indices.numel(), bags.options());
      bags = at::searchsorted(aliases.of(offsets), order, /*out_int32=*/false, /*right=*/true).sub_(1).to(bags.dtype());
    }
    return std::make_tuple(output, bags, sizes, mode == kMax ? places : at::empty({0}, places.options()));
  });
  return {aliases.result(output), aliases.result(bags), aliases.result(sizes), aliases.result(places)};
}

/* In a storage of its size: the CPU's kernel leaves that of what it was made of. */
Tensor folded(
    const Tensor& columns, at::IntArrayRef size, at::IntArrayRef kernel, at::IntArrayRef dilation,
    at::IntArrayRef padding, at::IntArrayRef stride) {
  Aliases aliases(columns.device().index());
  return aliases.result(run_now(columns.device().index(), [&] {
    return at::col2im(aliases.of(columns), size, kernel, dilation, padding, stride).clone();
  }));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("native_batch_norm", &batch_norm);
  m.impl("_native_batch_norm_legit_no_training", &batch_norm_in_evaluation);
  m.impl("native_dropout_backward", &dropout_backward);
  m.impl("col2im", &folded);
  m.impl("_embedding_bag", &embedding_bag);
}

}  // namespace

}  // namespace vdev
