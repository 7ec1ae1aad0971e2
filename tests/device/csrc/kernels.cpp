/* Ops that need the device itself: memory, copies, storages; and the ones that torch wants of a backend by name. */

#include "vdev.h"

namespace vdev {

namespace {

using at::IntArrayRef;
using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

int index_of(std::optional<c10::Device> device) {
  return device && device->index() >= 0 ? device->index() : current_device();
}

Tensor empty(
    IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>, std::optional<c10::Device> device,
    std::optional<bool> pin_memory, std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(!pin_memory.value_or(false), "only memory of the CPU can be pinned");
  c10::OptionalDeviceGuard guard(c10::Device(kType, static_cast<c10::DeviceIndex>(index_of(device))));
  return at::detail::empty_generic(
      size, c10::GetAllocator(kType), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(
    IntArrayRef size, IntArrayRef stride, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<c10::Device> device, std::optional<bool>) {
  c10::OptionalDeviceGuard guard(c10::Device(kType, static_cast<c10::DeviceIndex>(index_of(device))));
  return at::detail::empty_strided_generic(
      size, stride, c10::GetAllocator(kType), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(dtype));
}

/* A tensor whose memory somebody else holds: nothing that a queue lets go of is Python's. */
Tensor unowned(const Tensor& tensor) {
  if (tensor.is_privateuseone()) return cpu_alias(tensor);
  auto address = const_cast<void*>(tensor.storage().data());
  c10::Storage storage(
      c10::Storage::use_byte_size_t(), tensor.storage().nbytes(), c10::DataPtr(address, c10::Device(c10::kCPU)));
  auto alias = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  alias.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  if (tensor.is_conj()) alias._set_conj(true);
  if (tensor.is_neg()) alias._set_neg(true);
  return alias;
}

void over_the_link(size_t nbytes, Stream& stream, Span direction) {
  double rate = controls.copy_bytes_per_s;
  auto n = static_cast<double>(nbytes);
  if (controls.virtual_time) return advance(stream, direction, n, rate > 0 ? n / rate : 0);
  if (rate > 0) std::this_thread::sleep_for(std::chrono::duration<double>(static_cast<double>(nbytes) / rate));
}

Tensor& copy_(Tensor& self, const Tensor& source, bool non_blocking) {
  if (self.is_same(source) || self.numel() == 0) return self;
  auto from = source.expand_as(self); /* an error of shapes is the caller's, now */
  bool is_across = self.is_cpu() || source.is_cpu();
  int device = (self.is_cpu() ? source : self).device().index();
  auto& stream = current_stream(device);
  auto direction = self.is_cpu() ? Span::kToHost : Span::kToDevice;
  auto run = [target = unowned(self), from = unowned(from), is_across, direction, &stream]() mutable {
    if (is_across) over_the_link(from.nbytes(), stream, direction);
    at::AutoDispatchBelowADInplaceOrView below;
    target.copy_(from);
  };
  if (!is_across) {
    auto& other = current_stream(source.device().index());
    wait_for(stream, other);
    stream.enqueue([run, &stream]() mutable {
      KernelScope scope(stream, true);
      run();
    });
    wait_for(other, stream);
    return self;
  }
  const void* host = (self.is_cpu() ? self : source).storage().data();
  if (non_blocking && is_pinned_address(host)) {
    stream.enqueue(run);
    record_pinned(host, stream);
  } else {
    stream.drain();
    run();
  }
  return self;
}

Tensor copy_from(const Tensor& source, const Tensor& target, bool non_blocking) {
  Tensor written = target;
  return copy_(written, source, non_blocking);
}

}  // namespace

void resize_bytes(const c10::Storage& storage, size_t nbytes) {
  int device = storage.device().index();
  c10::OptionalDeviceGuard guard(storage.device());
  auto data = c10::GetAllocator(kType)->allocate(nbytes);
  auto kept = std::min(nbytes, storage.nbytes());
  if (kept > 0)
    current_stream(device).enqueue(
        [to = data.get(), from = storage.data(), kept] { std::memcpy(to, from, kept); });
  storage.unsafeGetStorageImpl()->set_data_ptr(std::move(data));
  storage.unsafeGetStorageImpl()->set_nbytes(nbytes);
}

namespace {

Tensor& set_storage(Tensor& self, at::Storage source, int64_t offset, IntArrayRef size, IntArrayRef stride) {
  auto strides = stride.empty() && !size.empty() ? c10::contiguous_strides(size) : c10::DimVector(stride);
  auto needed = at::detail::computeStorageNbytes(size, strides, self.dtype().itemsize(), offset);
  if (needed > source.nbytes()) resize_bytes(source, needed);
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  impl->set_sizes_and_strides(size, strides, offset);
  return self;
}

Tensor& set_whole_storage(Tensor& self, at::Storage source) {
  auto length = static_cast<int64_t>(source.nbytes() / self.dtype().itemsize());
  return set_storage(self, std::move(source), 0, {length}, {1});
}

void record_stream(Tensor& self, c10::Stream stream) {
  c10::getDeviceAllocator(kType)->recordStream(self.storage().data_ptr(), stream);
}

/* ---- what torch asks a backend for by name ---- */

Tensor convolution(
    const Tensor& input, const Tensor& weight, const OptionalTensor& bias, IntArrayRef stride, IntArrayRef padding,
    IntArrayRef dilation, bool transposed, IntArrayRef output_padding, int64_t groups) {
  int device = input.device().index();
  Aliases aliases(device);
  return aliases.result(run_now(device, [&] {
    auto on_cpu = bias && bias->defined() ? OptionalTensor(aliases.of(*bias)) : std::nullopt;
    auto output = at::convolution(
        aliases.of(input), aliases.of(weight), on_cpu, stride, padding, dilation, transposed, output_padding, groups);
    return output.contiguous(); /* as torch's tracer expects it of every device that brings its own */
  }));
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(
    const Tensor& grad, const Tensor& input, const Tensor& weight, IntArrayRef stride, IntArrayRef padding,
    IntArrayRef dilation, bool transposed, IntArrayRef output_padding, int64_t groups, std::array<bool, 3> mask) {
  int device = input.device().index();
  Aliases aliases(device);
  int64_t num_outputs = transposed ? weight.size(1) * groups : weight.size(0);
  auto [by_input, by_weight, by_bias] = run_now(device, [&] {
    auto [x, w, b] = at::convolution_backward(
        aliases.of(grad), aliases.of(input), aliases.of(weight), IntArrayRef{num_outputs}, stride,
        padding, dilation, transposed, output_padding, groups, mask);
    return std::make_tuple(x.defined() ? x.contiguous() : x, w.defined() ? w.contiguous() : w, b);
  });
  return {aliases.result(by_input), aliases.result(by_weight), aliases.result(by_bias)};
}

Tensor sum_of(Aliases& aliases, const Tensor& gates, const OptionalTensor& bias) {
  return bias && bias->defined() ? aliases.of(gates) + aliases.of(*bias) : aliases.of(gates);
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell(
    const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& cx, const OptionalTensor& input_bias,
    const OptionalTensor& hidden_bias) {
  int device = cx.device().index();
  Aliases aliases(device);
  auto [hy, cy, saved] = run_now(device, [&] {
    auto gates = (sum_of(aliases, input_gates, input_bias) + sum_of(aliases, hidden_gates, hidden_bias)).chunk(4, 1);
    auto i = gates[0].sigmoid(), f = gates[1].sigmoid(), c = gates[2].tanh(), o = gates[3].sigmoid();
    auto next = f * aliases.of(cx) + i * c;
    return std::make_tuple(o * next.tanh(), next, at::cat({i, f, c, o}, 1));
  });
  return {aliases.result(hy), aliases.result(cy), aliases.result(saved)};
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(
    const OptionalTensor& grad_hy, const OptionalTensor& grad_cy, const Tensor& cx, const Tensor& cy,
    const Tensor& saved, bool has_bias) {
  if (!(grad_hy && grad_hy->defined()) && !(grad_cy && grad_cy->defined())) return {};
  int device = cx.device().index();
  Aliases aliases(device);
  auto [by_gates, by_cx, by_bias] = run_now(device, [&] {
    auto gates = aliases.of(saved).chunk(4, 1);
    auto i = gates[0], f = gates[1], c = gates[2], o = gates[3], t = aliases.of(cy).tanh();
    auto hy = grad_hy && grad_hy->defined() ? aliases.of(*grad_hy) : at::zeros_like(t);
    auto by_cy = hy * o * (1 - t * t);
    if (grad_cy && grad_cy->defined()) by_cy = by_cy + aliases.of(*grad_cy);
    auto all = at::cat(
        {by_cy * c * i * (1 - i), by_cy * aliases.of(cx) * f * (1 - f), by_cy * i * (1 - c * c), hy * t * o * (1 - o)}, 1);
    return std::make_tuple(all, by_cy * f, has_bias ? all.sum(0) : Tensor());
  });
  return {aliases.result(by_gates), aliases.result(by_cx), aliases.result(by_bias)};
}

std::tuple<Tensor, Tensor> gru_cell(
    const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& hx, const OptionalTensor& input_bias,
    const OptionalTensor& hidden_bias) {
  int device = hx.device().index();
  Aliases aliases(device);
  auto [hy, saved] = run_now(device, [&] {
    auto saved = at::empty({hx.size(0), 5 * hx.size(1)}, aliases.of(hx).options());
    auto parts = saved.chunk(5, 1);
    auto r = parts[0], z = parts[1], n = parts[2], before = parts[3], hn = parts[4];
    auto h = sum_of(aliases, hidden_gates, hidden_bias).chunk(3, 1);
    saved.narrow(1, 0, 3 * hx.size(1)).copy_(sum_of(aliases, input_gates, input_bias));
    r.add_(h[0]).sigmoid_(), z.add_(h[1]).sigmoid_(), hn.copy_(h[2]), before.copy_(aliases.of(hx));
    n.addcmul_(r, hn).tanh_();
    return std::make_tuple(n + z * (before - n), saved);
  });
  return {aliases.result(hy), aliases.result(saved)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(
    const Tensor& grad_hy, const Tensor& saved, bool has_bias) {
  int device = saved.device().index();
  Aliases aliases(device);
  auto [by_input, by_hidden, by_hx, by_input_bias, by_hidden_bias] = run_now(device, [&] {
    auto parts = aliases.of(saved).chunk(5, 1);
    auto r = parts[0], z = parts[1], n = parts[2], hx = parts[3], hn = parts[4], g = aliases.of(grad_hy);
    auto by_n = g * (1 - z) * (1 - n * n), by_z = g * (hx - n) * z * (1 - z), by_r = by_n * hn * r * (1 - r);
    auto input = at::cat({by_r, by_z, by_n}, 1), hidden = at::cat({by_r, by_z, by_n * r}, 1);
    return std::make_tuple(
        input, hidden, g * z, has_bias ? input.sum(0) : Tensor(), has_bias ? hidden.sum(0) : Tensor());
  });
  return {
      aliases.result(by_input), aliases.result(by_hidden), aliases.result(by_hx), aliases.result(by_input_bias),
      aliases.result(by_hidden_bias)};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("copy_", &copy_);
  m.impl("_copy_from", &copy_from);
  m.impl("set_.source_Storage", &set_whole_storage);
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("record_stream", &record_stream);
  m.impl("convolution_overrideable", &convolution);
  m.impl("convolution_backward_overrideable", &convolution_backward);
  m.impl("_thnn_fused_lstm_cell", &lstm_cell);
  m.impl("_thnn_fused_lstm_cell_backward_impl", &lstm_cell_backward);
  m.impl("_thnn_fused_gru_cell", &gru_cell);
  m.impl("_thnn_fused_gru_cell_backward", &gru_cell_backward);
}

}  // namespace

}  // namespace vdev
