/* The memory of the devices: a caching allocator as CUDA's is built, over a range of addresses per device.

   Blocks are cut from segments, in multiples of 512 bytes; a freed block joins its free neighbours and waits for its
   stream. Segments count against the hard limit and go back only when the limit is met or the cache is emptied.

   There are three times a block can be freed in, and they do not share free lists: the host's (in the order of the
   stream: who allocates next on that stream runs after), a queued kernel's (when the worker gets there), and, for a
   block that `record_stream` has named, the time when those streams have passed the point of the free. */

#pragma once

#include "vdev.h"

#include <sys/mman.h>

namespace vdev {

using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatArray;
using c10::CachingDeviceAllocator::DeviceStats;

inline constexpr size_t kRound = 512;
inline constexpr size_t kSmall = 1 << 20; /* up to here a block is of the small pool */
inline constexpr size_t kRange = size_t{1} << 36; /* addresses per device; pages come when they are touched */
inline constexpr size_t kDefaultLimit = size_t{4} << 30;
inline constexpr size_t kPage = 4096;

inline thread_local Stream* kernel_stream = nullptr;
inline thread_local bool kernel_is_queued = false;

inline size_t rounded_up(size_t nbytes, size_t to) { return (nbytes + to - 1) / to * to; }

/* Where a free block waits: blocks of one place are interchangeable. */
struct Place {
  int64_t stream;
  bool is_queued, is_small;
  bool operator<(const Place& other) const {
    return std::tie(stream, is_queued, is_small) < std::tie(other.stream, other.is_queued, other.is_small);
  }
};

struct Block {
  char* address;
  size_t nbytes, asked = 0, segment_nbytes;
  Place place;
  Block *before = nullptr, *after = nullptr; /* of the same segment */
  bool is_taken = false;
  uint64_t freed_at = 0; /* the last ticket of its own stream: what may still read it, and its poison */
  std::set<Stream*> used_on;
  std::vector<std::pair<Stream*, uint64_t>> awaited;
};

struct BySize {
  bool operator()(const Block* a, const Block* b) const {
    return std::tie(a->nbytes, a->address) < std::tie(b->nbytes, b->address);
  }
};

struct Device {
  std::mutex mutex;
  int index;
  char* base;
  size_t limit = kDefaultLimit, others = 0, small_segment = 2 << 20, large_segment = 20 << 20;
  std::map<size_t, size_t> unused; /* offset -> bytes of the range that belong to no segment */
  std::unordered_map<char*, Block*> taken;
  std::map<Place, std::set<Block*, BySize>> free;
  std::vector<Block*> pending; /* freed, but a recorded stream has not passed */
  DeviceStats stats;

  explicit Device(int index) : index(index) {
    void* found = mmap(nullptr, kRange, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    TORCH_CHECK(found != MAP_FAILED, "no addresses for a device of tests");
    base = static_cast<char*>(found);
    unused[0] = kRange;
  }

  template <typename Change>
  void count(const Block& block, StatArray& stat, Change change) {
    change(stat[0]);
    change(stat[block.place.is_small ? 1 : 2]);
  }
  void add(const Block& block, StatArray& stat, size_t n) { count(block, stat, [n](Stat& s) { s.increase(n); }); }
  void take(const Block& block, StatArray& stat, size_t n) { count(block, stat, [n](Stat& s) { s.decrease(n); }); }
  bool is_split(const Block& block) const { return block.nbytes != block.segment_nbytes; }

  void to_free(Block* block) {
    free[block->place].insert(block);
    if (!is_split(*block)) return;
    add(*block, stats.inactive_split, 1);
    add(*block, stats.inactive_split_bytes, block->nbytes);
  }
  void from_free(Block* block) {
    free[block->place].erase(block);
    if (!is_split(*block)) return;
    take(*block, stats.inactive_split, 1);
    take(*block, stats.inactive_split_bytes, block->nbytes);
  }

  Block* found(size_t nbytes, const Place& place) {
    Block wanted{nullptr, nbytes, 0, 0, place};
    auto& blocks = free[place];
    auto at = blocks.lower_bound(&wanted);
    if (at == blocks.end()) return nullptr;
    Block* block = *at;
    from_free(block);
    return block;
  }

  Block* segment(size_t nbytes, const Place& place) {
    size_t grain = place.is_small ? small_segment : large_segment;
    size_t whole = nbytes;
    if (place.is_small && grain) whole = grain;
    else if (grain) whole = nbytes < grain / 2 ? grain : rounded_up(nbytes, 2 << 20);
    whole = rounded_up(whole, kRound);
    if (static_cast<size_t>(stats.reserved_bytes[0].current) + whole + others > limit) return nullptr;
    auto hole = unused.begin();
    size_t spaced = rounded_up(whole, kPage);
    while (hole != unused.end() && hole->second < spaced) ++hole;
    if (hole == unused.end()) return nullptr;
    auto [offset, room] = *hole;
    unused.erase(hole);
    if (room > spaced) unused[offset + spaced] = room - spaced;
    auto* block = new Block{base + offset, whole, 0, whole, place};
    ++stats.num_device_alloc;
    add(*block, stats.segment, 1);
    add(*block, stats.reserved_bytes, whole);
    return block;
  }

  void split(Block* block, size_t nbytes) {
    size_t rest = block->nbytes - nbytes;
    if (rest < (block->place.is_small || !large_segment ? kRound : kSmall)) return;
    auto* other = new Block{block->address + nbytes, rest, 0, block->segment_nbytes, block->place, block, block->after};
    other->freed_at = block->freed_at;
    if (other->after) other->after->before = other;
    block->after = other;
    block->nbytes = nbytes;
    to_free(other);
  }

  void* allocate(size_t asked, int64_t stream, bool is_queued) {
    check_not_lost(index);
    std::unique_lock<std::mutex> lock(mutex);
    settle();
    size_t nbytes = rounded_up(asked, kRound);
    Place place{stream, is_queued, nbytes <= kSmall};
    Block* block = found(nbytes, place);
    if (!block) block = segment(nbytes, place);
    if (!block && !is_queued) {
      ++stats.num_alloc_retries;
      empty(lock);
      block = found(nbytes, place);
      if (!block) block = segment(nbytes, place);
    }
    if (!block) out_of_memory(asked);
    split(block, nbytes);
    block->asked = asked;
    block->is_taken = true;
    taken[block->address] = block;
    add(*block, stats.allocation, 1);
    add(*block, stats.active, 1);
    add(*block, stats.allocated_bytes, block->nbytes);
    add(*block, stats.active_bytes, block->nbytes);
    add(*block, stats.requested_bytes, asked);
    lock.unlock();
    wait_in_kernel(*block);
    return block->address;
  }

  /* A kernel that runs in the caller has waited for its stream when it began. What another thread has queued and freed
     since then may still be read. */
  void wait_in_kernel(const Block& block) {
    if (kernel_stream && !kernel_is_queued && kernel_stream == &home(block)) kernel_stream->wait(block.freed_at);
  }

  [[noreturn]] void out_of_memory(size_t asked) {
    ++stats.num_ooms;
    auto reserved = stats.reserved_bytes[0].current, allocated = stats.allocated_bytes[0].current;
    TORCH_CHECK_WITH(
        OutOfMemoryError, false, "vdev out of memory: tried to allocate ", asked, " bytes. Device ", index, " has ", limit,
        " bytes, of which ", reserved, " are reserved, ", allocated, " allocated, and ", others, " another process's.");
  }

  void release(char* address) {
    std::lock_guard<std::mutex> lock(mutex);
    auto at = taken.find(address);
    TORCH_INTERNAL_ASSERT(at != taken.end(), "a block of vdev was freed twice");
    Block* block = at->second;
    taken.erase(at);
    block->is_taken = false;
    take(*block, stats.allocation, 1);
    take(*block, stats.allocated_bytes, block->nbytes);
    take(*block, stats.requested_bytes, block->asked);
    for (auto* stream : block->used_on) block->awaited.emplace_back(stream, stream->last_ticket());
    block->used_on.clear();
    if (block->awaited.empty()) return give_back(block);
    pending.push_back(block);
  }

  void settle() {
    auto waiting = std::move(pending);
    pending.clear();
    for (auto* block : waiting) {
      auto& awaited = block->awaited;
      while (!awaited.empty() && awaited.back().first->reached(awaited.back().second)) awaited.pop_back();
      if (awaited.empty()) give_back(block);
      else pending.push_back(block);
    }
  }

  void give_back(Block* block) {
    take(*block, stats.active, 1);
    take(*block, stats.active_bytes, block->nbytes);
    poison(*block);
    if (!block->place.is_queued) block->freed_at = home(*block).last_ticket();
    for (auto* other : {block->before, block->after}) {
      if (!other || other->is_taken || !other->awaited.empty()) continue;
      from_free(other);
      Block *first = other->address < block->address ? other : block, *second = first == other ? block : other;
      first->nbytes += second->nbytes;
      first->freed_at = std::max(first->freed_at, second->freed_at);
      first->after = second->after;
      if (second->after) second->after->before = first;
      delete second;
      block = first;
    }
    to_free(block);
  }

  /* In the order of the block's stream: what runs on it before the free still finds the bytes. A kernel that runs in
     the caller has waited for its stream, and may take the block again before anything that is queued from here on. */
  void poison(Block& block) {
    if (!controls.poison || controls.is_lost[index]) return;
    auto fill = [address = block.address, nbytes = block.nbytes] { std::memset(address, 0xFF, nbytes); };
    bool has_waited = kernel_stream && !kernel_is_queued && kernel_stream == &home(block);
    if (has_waited || block.place.is_queued || controls.blocking) return fill();
    home(block).enqueue(fill);
  }

  Stream& home(const Block& block) {
    c10::Device device(kType, static_cast<c10::DeviceIndex>(index));
    return stream_of(c10::Stream(c10::Stream::UNSAFE, device, block.place.stream));
  }

  /* Whole segments go back. Nothing may be queued that still writes to them, and whoever waits for a queue gives the
     lock away: a kernel there may want it. */
  void empty(std::unique_lock<std::mutex>& lock) {
    for (int round = 0; round < 2; ++round) { /* what the first settles may be poisoned */
      lock.unlock();
      synchronize_device(index);
      lock.lock();
      settle();
    }
    for (auto& [place, blocks] : free) {
      for (auto at = blocks.begin(); at != blocks.end();) {
        Block* block = *at;
        if (is_split(*block) || !home(*block).reached(block->freed_at)) {
          ++at;
          continue;
        }
        at = blocks.erase(at);
        take(*block, stats.segment, 1);
        take(*block, stats.reserved_bytes, block->nbytes);
        ++stats.num_device_free;
        give_range_back(block->address - base, rounded_up(block->nbytes, kPage));
        delete block;
      }
    }
  }

  void give_range_back(size_t offset, size_t nbytes) {
    madvise(base + offset, nbytes, MADV_DONTNEED);
    auto after = unused.lower_bound(offset);
    if (after != unused.end() && after->first == offset + nbytes) {
      nbytes += after->second;
      after = unused.erase(after);
    }
    if (after != unused.begin() && std::prev(after)->first + std::prev(after)->second == offset) {
      std::prev(after)->second += nbytes;
      return;
    }
    unused[offset] = nbytes;
  }
};

}  // namespace vdev
