/* CPU tensors on the memory of device tensors, and the way back: what the fallback hands to the CPU's kernels. */

#include "vdev.h"

namespace vdev {

at::Tensor Aliases::of(const at::Tensor& tensor) {
  if (!tensor.is_privateuseone()) return tensor;
  auto& storage = tensor.storage();
  c10::Storage found;
  for (auto& [ours, alias] : storages)
    if (ours.is_alias_of(storage)) found = alias;
  if (!found) {
    auto address = const_cast<void*>(storage.data());
    found = c10::Storage(
        c10::Storage::use_byte_size_t(), storage.nbytes(), c10::DataPtr(address, c10::Device(c10::kCPU)),
        c10::GetAllocator(c10::kCPU), /*resizable=*/true);
    storages.emplace_back(storage, found);
  }
  c10::InferenceMode as_it_is(tensor.is_inference());
  auto alias = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(found), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  auto* impl = alias.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  if (tensor.is_conj()) alias._set_conj(true);
  if (tensor.is_neg()) alias._set_neg(true);
  return alias;
}

at::Tensor cpu_alias(const at::Tensor& tensor) { return Aliases(0).of(tensor); }

/* The kernel's memory is the device's from here on. Memory that does not lie there is copied. */
c10::Storage Aliases::adopted(const c10::Storage& cpu) {
  for (auto& [ours, alias] : storages)
    if (alias.is_alias_of(cpu)) return ours;
  auto on_device = c10::Device(kType, static_cast<c10::DeviceIndex>(device));
  size_t nbytes = cpu.nbytes();
  c10::DataPtr data;
  if (cpu.data() == nullptr || nbytes == 0) {
    data = c10::DataPtr(nullptr, on_device);
  } else if (is_device_address(cpu.data()) && cpu.data_ptr().get_context() == cpu.data()) {
    auto moved = cpu.unsafeGetStorageImpl()->set_data_ptr(c10::DataPtr(cpu.mutable_data(), c10::Device(c10::kCPU)));
    data = c10::DataPtr(moved.get(), moved.release_context(), moved.get_deleter(), on_device);
  } else {
    auto before = exchange_device(device);
    data = c10::GetAllocator(kType)->allocate(nbytes);
    exchange_device(before);
    std::memcpy(data.get(), cpu.data(), nbytes);
  }
  c10::Storage ours(c10::Storage::use_byte_size_t(), nbytes, std::move(data), c10::GetAllocator(kType), /*resizable=*/true);
  storages.emplace_back(ours, cpu);
  return ours;
}

at::Tensor Aliases::result(const at::Tensor& cpu) {
  if (!cpu.defined() || !cpu.is_cpu()) return cpu;
  c10::InferenceMode as_it_is(cpu.is_inference()); /* a view in inference mode is of its base's kind */
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      adopted(cpu.storage()), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), cpu.dtype());
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(cpu.sizes(), cpu.strides(), cpu.storage_offset());
  if (cpu.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  if (cpu.is_conj()) tensor._set_conj(true);
  if (cpu.is_neg()) tensor._set_neg(true);
  return tensor;
}

void Aliases::write_back(const at::Tensor& tensor, const at::Tensor& alias) {
  auto* impl = tensor.unsafeGetTensorImpl();
  for (auto& [ours, seen] : storages) {
    if (!seen.is_alias_of(alias.storage()) || !ours.is_alias_of(tensor.storage())) continue;
    if (alias.storage().data() != ours.data()) { /* it has grown: its old block goes, as resize_ does */
      Aliases other(device);
      auto grown = other.adopted(alias.storage());
      ours.unsafeGetStorageImpl()->set_data_ptr(grown.unsafeGetStorageImpl()->set_data_ptr(
          c10::DataPtr(nullptr, grown.device())));
    }
    ours.unsafeGetStorageImpl()->set_nbytes(alias.storage().nbytes());
  }
  if (!adopted(alias.storage()).is_alias_of(tensor.storage())) impl->set_storage_keep_dtype(adopted(alias.storage()));
  if (tensor.sizes() != alias.sizes() || tensor.strides() != alias.strides() ||
      tensor.storage_offset() != alias.storage_offset())
    impl->set_sizes_and_strides(alias.sizes(), alias.strides(), alias.storage_offset());
}

}  // namespace vdev
