/* Torch's view of the devices' memory: the allocator of device tensors, and a CPU allocator that knows kernels. */

#include "device_memory.h"

namespace vdev {

namespace {

Device& device_at(int index) {
  static Device* devices[kNumDevices] = {new Device(0), new Device(1)};
  return *devices[index];
}

/* The deleter of every block of a device. */
void free_block(void* address) {
  if (address != nullptr) device_at(device_of_address(address)).release(static_cast<char*>(address));
}

struct VdevAllocator final : c10::DeviceAllocator {
  bool initialized() override { return true; }

  c10::DataPtr allocate(size_t nbytes) override {
    int index = current_device();
    c10::Device device(kType, static_cast<c10::DeviceIndex>(index));
    if (nbytes == 0) return {nullptr, nullptr, &free_block, device};
    void* address = device_at(index).allocate(nbytes, current_stream(index).id, false);
    return {address, address, &free_block, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* target, const void* source, size_t nbytes) const override {
    current_stream(current_device()).drain();
    std::memcpy(target, source, nbytes);
  }

  void emptyCache(c10::MempoolId_t) override {
    for (int index = 0; index < kNumDevices; ++index) {
      std::unique_lock<std::mutex> lock(device_at(index).mutex);
      device_at(index).empty(lock);
    }
  }
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    if (!data.get() || !is_device_address(data.get())) return;
    auto& device = device_at(device_of_address(data.get()));
    std::lock_guard<std::mutex> lock(device.mutex);
    auto at = device.taken.find(static_cast<char*>(data.get_context()));
    if (at == device.taken.end() || at->second->place.stream == stream.id()) return;
    at->second->used_on.insert(&stream_of(stream));
  }

  DeviceStats getDeviceStats(c10::DeviceIndex index) override {
    std::lock_guard<std::mutex> lock(device_at(index).mutex);
    return device_at(index).stats;
  }
  template <typename Reset>
  void reset(c10::DeviceIndex index, Reset reset) {
    std::lock_guard<std::mutex> lock(device_at(index).mutex);
    auto& s = device_at(index).stats;
    for (auto* array : {&s.allocation, &s.segment, &s.active, &s.inactive_split, &s.allocated_bytes, &s.reserved_bytes,
                        &s.active_bytes, &s.inactive_split_bytes, &s.requested_bytes})
      for (auto& stat : *array) reset(stat);
  }
  void resetAccumulatedStats(c10::DeviceIndex index) override {
    reset(index, [](Stat& stat) { stat.reset_accumulated(); });
    auto& s = device_at(index).stats;
    s.num_alloc_retries = s.num_ooms = s.num_device_alloc = s.num_device_free = 0;
  }
  void resetPeakStats(c10::DeviceIndex index) override {
    reset(index, [](Stat& stat) { stat.reset_peak(); });
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex index) override {
    check_not_lost(index);
    auto& device = device_at(index);
    std::lock_guard<std::mutex> lock(device.mutex);
    size_t taken = device.stats.reserved_bytes[0].current + device.others;
    return {device.limit > taken ? device.limit - taken : 0, device.limit};
  }
};

c10::DeleterFnPtr free_on_cpu = nullptr;

/* Of a block that a kernel asked the CPU's allocator for, wherever it lies. */
void release_block(void* address) {
  if (is_device_address(address)) return c10::GetAllocator(kType)->raw_deallocate(address);
  free_on_cpu(address);
}

/* The CPU's allocator, but inside of a device's kernel: results and workspaces are the device's, and asked for where all
   its tensors are. What a queue asks for in the device's time is asked of the device itself: no host knows when. */
struct KernelAllocator final : c10::Allocator {
  c10::Allocator* inner;
  explicit KernelAllocator(c10::Allocator* inner) : inner(inner) {}

  c10::DataPtr allocate(size_t nbytes) override {
    if (kernel_stream == nullptr || nbytes == 0) return inner->allocate(nbytes);
    if (kernel_is_queued && !controls.blocking) {
      void* address = device_at(kernel_stream->device).allocate(nbytes, kernel_stream->id, true);
      return {address, address, &release_block, c10::Device(c10::kCPU)};
    }
    c10::DeviceGuard guard(c10::Device(kType, static_cast<c10::DeviceIndex>(kernel_stream->device)));
    void* address = c10::GetAllocator(kType)->raw_allocate(nbytes);
    return {address, address, &release_block, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release_block; }
  void copy_data(void* target, const void* source, size_t nbytes) const override {
    std::memcpy(target, source, nbytes);
  }
};

constexpr uint8_t kPriority = 50; /* vdnn's own allocator wraps this one */

}  // namespace

KernelScope::KernelScope(Stream& stream, bool is_queued)
    : outer_stream(std::exchange(kernel_stream, &stream)), outer_is_queued(std::exchange(kernel_is_queued, is_queued)) {}
KernelScope::~KernelScope() {
  kernel_stream = outer_stream;
  kernel_is_queued = outer_is_queued;
}

int device_of_address(const void* address) {
  for (int index = 0; index < kNumDevices; ++index) {
    auto offset = static_cast<const char*>(address) - device_at(index).base;
    if (offset >= 0 && static_cast<size_t>(offset) < kRange) return index;
  }
  return -1;
}
bool is_device_address(const void* address) { return device_of_address(address) >= 0; }

void set_limit(int index, int64_t nbytes) {
  std::lock_guard<std::mutex> lock(device_at(index).mutex);
  device_at(index).limit = nbytes < 0 ? kDefaultLimit : static_cast<size_t>(nbytes);
}

void set_others(int index, int64_t nbytes) {
  std::lock_guard<std::mutex> lock(device_at(index).mutex);
  device_at(index).others = static_cast<size_t>(nbytes);
}

void set_segments(int64_t small_nbytes, int64_t large_nbytes) {
  for (int index = 0; index < kNumDevices; ++index) {
    std::lock_guard<std::mutex> lock(device_at(index).mutex);
    device_at(index).small_segment = small_nbytes;
    device_at(index).large_segment = large_nbytes;
  }
}

void install_allocators() {
  auto* before = c10::GetAllocator(c10::kCPU);
  free_on_cpu = before->raw_deleter();
  TORCH_CHECK(free_on_cpu, "the CPU's allocator has no raw blocks");
  c10::SetAllocator(c10::kCPU, new KernelAllocator(before), kPriority);
  c10::SetAllocator(kType, new VdevAllocator, kPriority);
}

}  // namespace vdev
