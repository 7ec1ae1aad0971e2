/* A generator per device, and the hooks through which torch finds it, pinned memory and the current device.

   Its numbers are the CPU generator's of the same seed: a device that is seeded as the CPU draws what the CPU draws. */

#include "vdev.h"

namespace vdev {

void resize_bytes(const c10::Storage& storage, size_t nbytes);

namespace {

struct VdevGenerator final : c10::GeneratorImpl {
  at::Generator inner;

  explicit VdevGenerator(int device, at::Generator inner)
      : GeneratorImpl(
            c10::Device(kType, static_cast<c10::DeviceIndex>(device)), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        inner(std::move(inner)) {}

  void set_current_seed(uint64_t seed) override { inner.set_current_seed(seed); }
  void set_offset(uint64_t) override {} /* its state says where it is */
  uint64_t get_offset() const override { return 0; }
  uint64_t current_seed() const override { return inner.current_seed(); }
  uint64_t seed() override { return inner.seed(); }
  void set_state(const c10::TensorImpl& state) override { inner.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return inner.unsafeGetGeneratorImpl()->get_state(); }

 private:
  VdevGenerator* clone_impl() const override { return new VdevGenerator(device_.index(), inner.clone()); }
};

int or_current(int device) { return device < 0 ? current_device() : device; }

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  void init() const override {}
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kNumDevices; }
  c10::DeviceIndex getCurrentDevice() const override { return static_cast<c10::DeviceIndex>(current_device()); }
  void setCurrentDevice(c10::DeviceIndex device) const override { exchange_device(device); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return static_cast<c10::DeviceIndex>(exchange_device(device));
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override { return exchangeDevice(device); }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return default_generator(or_current(device));
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return at::make_generator<VdevGenerator>(or_current(device), at::detail::createCPUGenerator());
  }
  at::Device getDeviceFromPtr(void* data) const override {
    int device = device_of_address(data);
    TORCH_CHECK(device >= 0, "not an address of vdev");
    return {kType, static_cast<c10::DeviceIndex>(device)};
  }
  bool isPinnedPtr(const void* data) const override { return is_pinned_address(data); }
  at::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t nbytes) const override {
    resize_bytes(storage, nbytes);
  }
};

}  // namespace

const at::Generator& default_generator(int device) {
  static const auto* generators = new std::array<at::Generator, kNumDevices>{
      at::make_generator<VdevGenerator>(0, at::detail::createCPUGenerator()),
      at::make_generator<VdevGenerator>(1, at::detail::createCPUGenerator())};
  return generators->at(device);
}

at::Generator cpu_generator_of(const at::Generator& generator) {
  return static_cast<VdevGenerator*>(generator.unsafeGetGeneratorImpl())->inner;
}

void install_hooks() { at::RegisterPrivateUse1HooksInterface(new Hooks); }

}  // namespace vdev
