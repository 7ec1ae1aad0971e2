/* Fused attention as accelerators have it: dropout inside of the kernel, its mask given by a seed and an offset that
   are saved instead of the mask. Without dropout the numbers are the CPU's flash attention's. */

#include "vdev.h"

#include <ATen/Context.h>
#include <ATen/SDPBackend.h>
#include <ATen/native/transformers/attention.h>

namespace vdev {

namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

int64_t choice(
    const Tensor& query, const Tensor& key, const Tensor& value, const OptionalTensor& mask, double, bool is_causal,
    std::optional<double>, bool enable_gqa) {
  bool is_plain = query.dim() == 4 && key.dim() == 4 && value.dim() == 4 && !enable_gqa &&
      query.sym_size(1) == key.sym_size(1) && query.sym_size(-1) == value.sym_size(-1) &&
      query.sym_stride(-1) == 1 && key.sym_stride(-1) == 1 && value.sym_stride(-1) == 1;
  bool has_mask = mask && mask->defined();
  bool is_mask_plain = !has_mask || (!mask->requires_grad() && !is_causal && (mask->dim() == 2 || mask->dim() == 4));
  bool is_fused = at::globalContext().userEnabledOverrideableSDP() && is_plain && is_mask_plain &&
      (query.scalar_type() == at::kFloat || query.scalar_type() == at::kBFloat16 || query.scalar_type() == at::kHalf);
  TORCH_CHECK(is_fused || at::globalContext().userEnabledMathSDP(), "no kernel of attention is allowed and possible");
  return static_cast<int64_t>(is_fused ? at::SDPBackend::overrideable : at::SDPBackend::math);
}

double scale_of(const Tensor& query, std::optional<double> scale) {
  return scale.value_or(1.0 / std::sqrt(static_cast<double>(query.size(-1))));
}

/* 1 / (1 - p) where a weight stays, else 0: of seed and offset alone. */
Tensor dropout_mask(const Tensor& like, double p, const Tensor& seed, const Tensor& offset) {
  auto mixed = static_cast<uint64_t>(seed.item<int64_t>()) * 0x9E3779B97F4A7C15ULL + offset.item<int64_t>();
  auto drawn = at::rand(like.sizes(), at::detail::createCPUGenerator(mixed), at::kFloat);
  return (drawn >= p).to(at::kFloat) / (1 - p);
}

/* The attention's weights before dropout, and the logarithm of their sums. */
std::pair<Tensor, Tensor> weights(
    const Tensor& query, const Tensor& key, const OptionalTensor& bias, bool is_causal, double scale) {
  auto scores = at::matmul(query.to(at::kFloat), key.to(at::kFloat).transpose(-2, -1)) * scale;
  if (bias && bias->defined()) scores = scores + bias->to(at::kFloat);
  if (is_causal) {
    auto above = at::ones({scores.size(-2), scores.size(-1)}, at::kBool).triu(1);
    scores = scores.masked_fill(above, -std::numeric_limits<double>::infinity());
  }
  return {at::softmax(scores, -1), at::logsumexp(scores, -1)};
}

OptionalTensor alias_of(Aliases& aliases, const OptionalTensor& tensor) {
  return tensor && tensor->defined() ? OptionalTensor(aliases.of(*tensor)) : std::nullopt;
}

Tensor drawn_number(at::CPUGeneratorImpl* generator) {
  std::lock_guard<std::mutex> lock(generator->mutex_);
  return at::scalar_tensor(static_cast<int64_t>(generator->random64() >> 1), at::kLong);
}

Tensor laid_out_as(const Tensor& like, const Tensor& values) {
  return at::empty_like(like, like.options()).copy_(values);
}

std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor> forward(
    const Tensor& query, const Tensor& key, const Tensor& value, const OptionalTensor& bias, double dropout_p,
    bool is_causal, bool, std::optional<double> scale) {
  int device = query.device().index();
  Aliases aliases(device);
  auto [output, logsumexp, seed, offset] = run_now(device, [&] {
    auto q = aliases.of(query), k = aliases.of(key), v = aliases.of(value);
    auto b = alias_of(aliases, bias);
    auto seed = at::zeros({}, at::kLong), offset = at::zeros({}, at::kLong);
    if (dropout_p == 0) {
      auto [out, sums] = at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, is_causal, b, scale);
      return std::make_tuple(laid_out_as(q, out), sums.contiguous(), seed, offset);
    }
    auto* generator = at::check_generator<at::CPUGeneratorImpl>(cpu_generator_of(default_generator(device)));
    seed = drawn_number(generator), offset = drawn_number(generator);
    auto [kept, sums] = weights(q, k, b, is_causal, scale_of(q, scale));
    auto out = at::matmul(kept * dropout_mask(kept, dropout_p, seed, offset), v.to(at::kFloat));
    return std::make_tuple(laid_out_as(q, out), sums, seed, offset);
  });
  return {
      aliases.result(output), aliases.result(logsumexp), Tensor(), Tensor(), query.sym_size(-2), key.sym_size(-2),
      aliases.result(seed), aliases.result(offset), Tensor()};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> backward(
    const Tensor& grad, const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& bias,
    std::array<bool, 4>, const Tensor& out, const Tensor& logsumexp, const Tensor&, const Tensor&, c10::SymInt,
    c10::SymInt, double dropout_p, bool is_causal, const Tensor& seed, const Tensor& offset,
    std::optional<double> asked_scale) {
  int device = query.device().index();
  Aliases aliases(device);
  auto [by_query, by_key, by_value] = run_now(device, [&] {
    auto q = aliases.of(query), k = aliases.of(key), v = aliases.of(value), g = aliases.of(grad);
    auto b = alias_of(aliases, bias);
    if (dropout_p == 0) {
      auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
          g, q, k, v, aliases.of(out), aliases.of(logsumexp), 0.0, is_causal, b, asked_scale);
      return std::make_tuple(laid_out_as(q, dq), laid_out_as(k, dk), laid_out_as(v, dv));
    }
    auto scale = scale_of(q, asked_scale);
    auto p = weights(q, k, b, is_causal, scale).first;
    auto mask = dropout_mask(p, dropout_p, aliases.of(seed), aliases.of(offset));
    g = g.to(at::kFloat);
    auto dv = at::matmul((p * mask).transpose(-2, -1), g);
    auto dp = at::matmul(g, v.to(at::kFloat).transpose(-2, -1)) * mask;
    auto ds = p * (dp - (dp * p).sum(-1, true)) * scale;
    auto dq = at::matmul(ds, k.to(at::kFloat)), dk = at::matmul(ds.transpose(-2, -1), q.to(at::kFloat));
    return std::make_tuple(laid_out_as(q, dq), laid_out_as(k, dk), laid_out_as(v, dv));
  });
  return {aliases.result(by_query), aliases.result(by_key), aliases.result(by_value), Tensor()};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_scaled_dot_product_fused_attention_overrideable", &forward);
  m.impl("_scaled_dot_product_fused_attention_overrideable_backward", &backward);
}

}  // namespace

}  // namespace vdev

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &vdev::choice)
}  // namespace at::native
