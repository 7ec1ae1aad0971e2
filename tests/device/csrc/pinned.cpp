/* Host memory that asynchronous copies may use. A freed block is given out again when the copies it was in are done. */

#include "vdev.h"

#include <sys/mman.h>

namespace vdev {

namespace {

struct PinnedBlock {
  char* address;
  size_t nbytes;
  std::vector<std::pair<Stream*, uint64_t>> awaited;

  bool is_idle() {
    while (!awaited.empty() && awaited.back().first->reached(awaited.back().second)) awaited.pop_back();
    return awaited.empty();
  }
};

void release_pinned(void* address);

struct PinnedAllocator final : at::HostAllocator {
  std::mutex mutex;
  std::map<char*, PinnedBlock> taken;
  std::multimap<size_t, PinnedBlock> freed;
  at::HostStats stats;

  c10::DataPtr allocate(size_t nbytes) override {
    if (nbytes == 0) return {nullptr, nullptr, &release_pinned, c10::Device(c10::kCPU)};
    std::lock_guard<std::mutex> lock(mutex);
    size_t rounded = (nbytes + 4095) / 4096 * 4096;
    auto at = freed.lower_bound(rounded);
    while (at != freed.end() && at->first == rounded && !at->second.is_idle()) ++at;
    PinnedBlock block;
    if (at != freed.end() && at->first == rounded) {
      block = std::move(at->second);
      freed.erase(at);
    } else {
      int64_t most = controls.most_pinned;
      if (most >= 0 && stats.allocated_bytes.current + static_cast<int64_t>(rounded) > most)
        throw c10::AcceleratorError(
            {__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, 2,
            "vdev error: cannot page-lock " + std::to_string(rounded) + " bytes");
      void* found = mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      TORCH_CHECK(found != MAP_FAILED, "no memory to pin: ", rounded, " bytes");
      block = {static_cast<char*>(found), rounded, {}};
      ++stats.num_host_alloc;
      stats.allocations.increase(1);
      stats.allocated_bytes.increase(rounded);
    }
    stats.active_requests.increase(1);
    stats.active_bytes.increase(rounded);
    char* address = block.address;
    taken[address] = std::move(block);
    return {address, address, &release_pinned, c10::Device(c10::kCPU)};
  }

  void release(char* address) {
    std::lock_guard<std::mutex> lock(mutex);
    auto at = taken.find(address);
    stats.active_requests.decrease(1);
    stats.active_bytes.decrease(at->second.nbytes);
    freed.emplace(at->second.nbytes, std::move(at->second));
    taken.erase(at);
  }

  PinnedBlock* holding(const void* address) {
    auto* wanted = static_cast<char*>(const_cast<void*>(address));
    auto at = taken.upper_bound(wanted);
    if (at == taken.begin()) return nullptr;
    auto& block = std::prev(at)->second;
    return wanted < block.address + block.nbytes ? &block : nullptr;
  }

  bool record(const void* address, Stream& stream) {
    std::lock_guard<std::mutex> lock(mutex);
    auto* block = holding(address);
    if (block != nullptr) block->awaited.emplace_back(&stream, stream.last_ticket());
    return block != nullptr;
  }
  bool record_event(void* address, void*, c10::Stream stream) override { return record(address, stream_of(stream)); }

  void empty_cache() override {
    std::lock_guard<std::mutex> lock(mutex);
    for (auto at = freed.begin(); at != freed.end();) {
      if (!at->second.is_idle()) {
        ++at;
        continue;
      }
      munmap(at->second.address, at->second.nbytes);
      stats.allocations.decrease(1);
      stats.allocated_bytes.decrease(at->second.nbytes);
      at = freed.erase(at);
    }
  }
  at::HostStats get_stats() override {
    std::lock_guard<std::mutex> lock(mutex);
    return stats;
  }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {
    std::lock_guard<std::mutex> lock(mutex);
    for (auto* stat : {&stats.active_requests, &stats.active_bytes, &stats.allocations, &stats.allocated_bytes})
      stat->reset_peak();
  }
  void copy_data(void* target, const void* source, size_t nbytes) const override {
    std::memcpy(target, source, nbytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release_pinned; }
};

PinnedAllocator& pinned() {
  static auto* ours = new PinnedAllocator;
  return *ours;
}

void release_pinned(void* address) {
  if (address != nullptr) pinned().release(static_cast<char*>(address));
}

}  // namespace

at::HostAllocator* pinned_allocator() { return &pinned(); }

bool is_pinned_address(const void* address) {
  std::lock_guard<std::mutex> lock(pinned().mutex);
  return pinned().holding(address) != nullptr;
}

void record_pinned(const void* address, Stream& stream) { pinned().record(address, stream); }

}  // namespace vdev
