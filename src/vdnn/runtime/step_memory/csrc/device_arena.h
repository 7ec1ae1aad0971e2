/* An accelerator's memory of steps: the arena is one block of the device's own allocator, and blocks lie in it whole.

   The device's allocator is wrapped, and asked for all that is not the arena's: what the caller holds (outputs,
   gradients), what comes between two halves, what nobody expected. Nothing here waits for the device. What is freed is
   given to what the same stream does next, as caching allocators do: an arena serves the stream on which it was
   reserved, and a half on another stream asks the device's allocator. A block that `record_stream` names is given back
   in the order of that stream: the arena's stream waits for it.

   An iteration that nobody has seen lies where its plan says: a block is known by the instruction that takes it and its
   bytes. What the plan does not know (workspaces) lies in holes that the plan leaves at that instruction.

   The lock is never held while the device's allocator is asked: it may wait for a kernel that frees a tensor. */

#pragma once

#include "steps.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Event.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <array>
#include <optional>

namespace {

constexpr int64_t kRound = 512; // kMinBlockSize of c10/cuda/CUDACachingAllocator.h, and of others after it
constexpr int64_t kSmallAside = 4 << 10; // smaller blocks may be numbers that stay: they lie at the end, out of the way
constexpr size_t kMostDevices = 64;

/* The device's allocator as it was, of the one kind of accelerator that a process has. */
c10::DeviceAllocator* device_inner = nullptr;

const c10::impl::DeviceGuardImplInterface* guard_of(c10::DeviceType type) { return c10::impl::getDeviceGuardImpl(type); }

c10::Stream current_stream(c10::DeviceType type) {
  auto* guard = guard_of(type);
  return guard->getStream(guard->getDevice());
}

/* What the arenas of a device hold back of its allocator's bytes, so that who asks what is allocated hears of blocks. */
struct Level {
  int64_t reserved_nbytes = 0, live_nbytes = 0, peak_nbytes = 0;
  bool is_used = false;
};
Level& level_of(c10::DeviceIndex index) {
  static auto* all = new std::array<Level, kMostDevices>;
  return all->at(index);
}

struct DeviceArena final : Arena {
  c10::Stream stream;

  DeviceArena(void* block, int64_t length, c10::Stream on) : stream(on) {
    base = static_cast<char*>(block);
    nbytes = length;
  }
  ~DeviceArena() override {
    {
      std::lock_guard<std::mutex> lock(mutex());
      level_of(stream.device_index()).reserved_nbytes -= nbytes;
    }
    device_inner->raw_deallocate(base);
  }
};

/* The smallest run of bytes that neither a live block nor one of `avoided` has; -1: there is none. `at_top`: the end of
   the last such run instead. */
int64_t best_hole(const Arena& arena, int64_t nbytes, std::vector<Extent> avoided, bool at_top) {
  for (auto& [begin, end] : arena.live) avoided.push_back({begin, end - begin});
  avoided.push_back({arena.nbytes, 0});
  std::sort(avoided.begin(), avoided.end(), [](auto& a, auto& b) { return a.offset < b.offset; });
  int64_t best = -1, best_nbytes = arena.nbytes + 1, from = 0;
  for (auto& taken : avoided) {
    auto hole = taken.offset - from;
    if (hole >= nbytes && at_top) best = taken.offset - nbytes;
    if (hole >= nbytes && !at_top && hole < best_nbytes) best = from, best_nbytes = hole;
    from = std::max(from, taken.offset + taken.nbytes);
  }
  return best;
}

struct DeviceMemory final : Memory {
  c10::Device device;

  explicit DeviceMemory(c10::Device on) : device(on) { type = on.type(); }

  bool reserve(int64_t nbytes) override {
    drop();
    if (nbytes == 0) return true;
    auto* guard = guard_of(type);
    auto before = guard->exchangeDevice(device);
    auto found = reserved(rounded_up(nbytes, kRound), guard->getStream(device));
    guard->exchangeDevice(before);
    std::lock_guard<std::mutex> lock(mutex());
    arena = std::move(found);
    return arena != nullptr;
  }
  void purge() override { drop_idle(); }
  void close() override {
    drop();
    std::lock_guard<std::mutex> lock(mutex());
    is_closed = true;
    open_between = -1;
  }
  /* Whether an arena in which nothing lies was given back. */
  bool drop_idle() {
    std::shared_ptr<Arena> dropped; /* goes after the lock */
    std::lock_guard<std::mutex> lock(mutex());
    if (arena != nullptr && arena->live.empty()) dropped = std::move(arena);
    return dropped != nullptr;
  }
  void drop() {
    std::shared_ptr<Arena> dropped; /* the same */
    std::lock_guard<std::mutex> lock(mutex());
    dropped = std::move(arena);
  }

 private:
  static std::shared_ptr<Arena> reserved(int64_t nbytes, c10::Stream stream);
};

/* Arenas that nobody uses now, of all models on the device but one, make room. */
bool drop_idle_arenas(c10::DeviceIndex index, const Memory* but) {
  std::vector<std::shared_ptr<Memory>> found;
  {
    std::lock_guard<std::mutex> lock(mutex());
    for (auto& memory : memories()) {
      if (memory != nullptr && memory.get() != but && memory->type != c10::DeviceType::CPU) found.push_back(memory);
    }
  }
  bool has_dropped = false;
  for (auto& memory : found) {
    auto& there = static_cast<DeviceMemory&>(*memory);
    if (there.device.index() == index) has_dropped |= there.drop_idle();
  }
  return has_dropped;
}

/* What the device's allocator gives; where it has nothing left, idle arenas go first. */
template <typename Ask>
auto asked(c10::DeviceType type, const Memory* by, Ask ask) -> decltype(ask()) {
  try {
    return ask();
  } catch (const c10::OutOfMemoryError&) {
    if (!drop_idle_arenas(guard_of(type)->getDevice().index(), by)) throw;
  }
  return ask();
}

/* Its cached blocks go back first: they lie where the arena could. */
std::shared_ptr<Arena> DeviceMemory::reserved(int64_t nbytes, c10::Stream stream) {
  auto index = stream.device_index();
  device_inner->emptyCache();
  auto before = device_inner->getDeviceStats(index).allocated_bytes[0].peak;
  void* block = nullptr;
  try {
    block = asked(stream.device_type(), nullptr, [&] { return device_inner->raw_allocate(nbytes); });
  } catch (const c10::OutOfMemoryError&) {
    return nullptr;
  }
  std::lock_guard<std::mutex> lock(mutex());
  auto& level = level_of(index);
  if (!level.is_used) level.peak_nbytes = before;
  level.is_used = true;
  level.reserved_nbytes += nbytes;
  return std::make_shared<DeviceArena>(block, nbytes, stream);
}

/* Null: something else lives there. */
char* take_place(DeviceMemory& memory, int64_t offset, int64_t kind, Block& block) {
  auto nbytes = rounded_up(block.nbytes, kRound);
  auto& arena = memory.arena;
  if (arena == nullptr || !arena->is_free(offset, offset + nbytes)) return nullptr;
  block.pieces.push_back({offset, nbytes, false});
  block.arena = arena;
  block.kind = kind;
  arena->live[offset] = offset + nbytes;
  ++arena->num_in_place;
  level_of(memory.device.index()).live_nbytes += nbytes;
  return arena->base + offset;
}

/* What the plan says of the next block of so many bytes at the instruction that runs, once. */
Planned* next_planned(Half& half, int64_t nbytes) {
  if (half.wanted >= 0) {
    auto& planned = half.guide.at(std::exchange(half.wanted, -1));
    if (planned.nbytes == nbytes) return &planned;
  }
  auto at = std::lower_bound(
      half.guide.begin(), half.guide.end(), half.position, [](auto& a, auto position) { return a.begin < position; });
  for (; at != half.guide.end() && at->begin == half.position; ++at) {
    if (at->nbytes == nbytes && !at->is_given) return &*at;
  }
  return nullptr;
}

/* A hole for what has no place, first among those that the plan leaves while this instruction runs. */
char* take_hole(DeviceMemory& memory, const Half& half, Block& block) {
  if (memory.arena == nullptr) return nullptr;
  std::vector<Extent> planned;
  for (auto& each : half.guide) {
    if (each.offset >= 0 && each.begin <= half.position && half.position < each.end)
      planned.push_back({each.offset, rounded_up(each.nbytes, kRound)});
  }
  auto nbytes = rounded_up(block.nbytes, kRound);
  bool at_top = half.num_asides > 0 && nbytes <= kSmallAside;
  auto offset = best_hole(*memory.arena, nbytes, planned, at_top);
  if (offset < 0) offset = best_hole(*memory.arena, nbytes, {}, at_top);
  return offset < 0 ? nullptr : take_place(memory, offset, kHole, block);
}

/* A place in the arena, under the lock. Null: the device's allocator serves the block, or the arena in the end. */
char* placed(DeviceMemory& memory, Half& half, Block& block, bool& is_expected) {
  char* address = nullptr;
  block.kind = kAlone;
  if (half.num_asides > 0) {
    is_expected = true;
    address = take_hole(memory, half, block);
    block.kind = kGone;
    return address;
  }
  if (!half.guide.empty()) {
    auto* planned = next_planned(half, block.nbytes);
    if (planned == nullptr) {
      address = take_hole(memory, half, block);
      is_expected = address != nullptr;
      return address;
    }
    planned->is_given = is_expected = true;
    if (planned->offset < 0) return nullptr;
    address = take_place(memory, planned->offset, kInPlace, block);
    return address != nullptr ? address : take_hole(memory, half, block);
  }
  const Slot* slot = next_slot(half, block.nbytes);
  if (slot != nullptr && slot->kind == kKept) {
    block.kind = kKept;
    block.is_held = is_expected = true;
  } else if (slot != nullptr) {
    address = take_place(memory, half.extents[slot->first_extent].offset, slot->kind, block);
    is_expected = address != nullptr;
  } else if (half.slots.empty()) {
    address = take_hole(memory, half, block);
  }
  return address;
}

/* Whether the block at this address should lie where the guide says under this number, and can: the next block of its
   size that this thread asks for gets that place, and they are to be exchanged. A workspace may have had the place while
   the op ran: which of two blocks of one size is the result is known when it is over. */
bool wants_its_place(void* address, int64_t number) {
  std::lock_guard<std::mutex> lock(mutex());
  auto found = blocks().find(address);
  if (running.empty() || found == blocks().end() || found->second.memory != running.back().memory) return false;
  auto& half = running.back();
  auto& block = found->second;
  auto& planned = half.guide.at(number);
  auto offset = block.pieces.empty() ? -1 : block.pieces.front().offset;
  if (block.nbytes != planned.nbytes || offset == planned.offset) return false;
  auto& arena = half.memory->arena;
  auto end = planned.offset + rounded_up(planned.nbytes, kRound);
  if (planned.offset >= 0 && (arena == nullptr || !arena->is_free(planned.offset, end))) return false;
  half.wanted = number;
  return true;
}

/* `one` lies where `other` lay, with its bytes: somebody has copied them. In the log it always did. */
void exchange(c10::StorageImpl& one, c10::StorageImpl& other) {
  {
    std::lock_guard<std::mutex> lock(mutex());
    auto before = blocks().find(one.mutable_data()), now = blocks().find(other.mutable_data());
    if (before == blocks().end() || now == blocks().end()) return;
    auto& log = before->second.memory->log;
    auto first = before->second.entry, second = now->second.entry;
    if (first >= log.size() || second >= log.size()) return;
    log[first].offset = log[second].offset;
    log[first].kind = log[second].kind;
    log[second].kind = kGone;
    std::swap(before->second.entry, now->second.entry);
  }
  auto data = one.set_data_ptr(c10::DataPtr());
  one.set_data_ptr_noswap(other.set_data_ptr(std::move(data)));
}

void release_on_device(void* address) {
  Block block; /* goes after the lock */
  {
    std::lock_guard<std::mutex> lock(mutex());
    auto found = blocks().find(address);
    if (found != blocks().end()) {
      block = std::move(found->second);
      blocks().erase(found);
    }
  }
  for (auto& stream : block.used_on) { /* what comes there next runs after what that stream has been given so far */
    c10::Event event(stream.device_type());
    event.record(stream);
    event.block(static_cast<DeviceArena&>(*block.arena).stream);
  }
  if (block.memory != nullptr) {
    std::lock_guard<std::mutex> lock(mutex());
    note_released(*block.memory, block);
    for (auto& piece : block.pieces) {
      block.arena->live.erase(piece.offset);
      --block.arena->num_in_place;
      level_of(static_cast<DeviceArena&>(*block.arena).stream.device_index()).live_nbytes -= piece.nbytes;
    }
  }
  if (block.arena == nullptr) device_inner->raw_deallocate(address);
}

/* Bytes of blocks: what the device's allocator counts, with what lies in the arenas instead of the arenas. */
int64_t allocated_nbytes(c10::DeviceIndex index) {
  auto nbytes = device_inner->getDeviceStats(index).allocated_bytes[0].current;
  std::lock_guard<std::mutex> lock(mutex());
  auto& level = level_of(index);
  nbytes += level.live_nbytes - level.reserved_nbytes;
  level.peak_nbytes = std::max(level.peak_nbytes, nbytes);
  return nbytes;
}

/* The allocator of a kind of device, `Base` as its factory functions know it. */
template <typename Base>
struct DeviceWrapper : Base {
  Base* before;
  c10::DeviceType type;
  DeviceWrapper(Base* before, c10::DeviceType type) : before(before), type(type) {}

  c10::DataPtr allocate(size_t nbytes) override {
    Half* half = nbytes == 0 ? nullptr : innermost(type);
    bool is_moving = half != nullptr && half->wanted >= 0; /* one of two blocks goes at once, and is counted once */
    auto data = taken(half, nbytes);
    auto index = data.device().index();
    if (nbytes > 0 && !is_moving && level_of(index).is_used) allocated_nbytes(index);
    return data;
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release_on_device; }
  void copy_data(void* to, const void* from, std::size_t nbytes) const override { before->copy_data(to, from, nbytes); }

  bool initialized() override { return before->initialized(); }
  void emptyCache(c10::MempoolId_t pool) override { before->emptyCache(pool); }
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    {
      std::lock_guard<std::mutex> lock(mutex());
      auto found = blocks().find(data.get_context());
      if (found != blocks().end() && found->second.arena != nullptr) {
        if (static_cast<DeviceArena&>(*found->second.arena).stream != stream) found->second.used_on.push_back(stream);
        return;
      }
    }
    c10::DataPtr as_its_own(data.get(), data.get_context(), before->raw_deleter(), data.device());
    before->recordStream(as_its_own, stream);
    as_its_own.release_context();
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex index) override {
    auto stats = before->getDeviceStats(index);
    if (!level_of(index).is_used) return stats;
    auto now = allocated_nbytes(index);
    std::lock_guard<std::mutex> lock(mutex());
    for (auto* stat : {&stats.allocated_bytes[0], &stats.active_bytes[0]}) {
      stat->current += now - stats.allocated_bytes[0].current;
      stat->peak = level_of(index).peak_nbytes;
    }
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex index) override { before->resetAccumulatedStats(index); }
  void resetPeakStats(c10::DeviceIndex index) override {
    before->resetPeakStats(index);
    if (!level_of(index).is_used) return;
    {
      std::lock_guard<std::mutex> lock(mutex());
      level_of(index).peak_nbytes = 0;
    }
    allocated_nbytes(index);
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex index) override { return before->getMemoryInfo(index); }

 private:
  c10::DataPtr taken(Half* half, size_t nbytes) {
    auto plainly = [&] { return before->allocate(nbytes); };
    if (half == nullptr || !serves(*half)) return asked(type, nullptr, plainly);
    auto memory = std::static_pointer_cast<DeviceMemory>(half->memory);
    auto block = new_block(*half, static_cast<int64_t>(nbytes));
    bool is_expected = false;
    char* address = nullptr;
    {
      std::lock_guard<std::mutex> lock(mutex());
      address = placed(*memory, *half, block, is_expected);
      if (address != nullptr || block.kind == kKept) note_taken(*memory, half->number, block, is_expected);
      if (address != nullptr) return entered(address, std::move(block), memory->device);
    }
    if (block.kind == kKept) return asked(type, memory.get(), plainly);
    try {
      address = static_cast<char*>(asked(type, memory.get(), [&] { return before->raw_allocate(nbytes); }));
    } catch (const c10::OutOfMemoryError&) {
      std::lock_guard<std::mutex> lock(mutex());
      address = take_hole(*memory, *half, block);
      if (address == nullptr) throw;
    }
    std::lock_guard<std::mutex> lock(mutex());
    note_taken(*memory, half->number, block, is_expected);
    return entered(address, std::move(block), memory->device);
  }
  static c10::DataPtr entered(char* address, Block block, c10::Device device) {
    blocks().insert_or_assign(address, std::move(block));
    return {address, address, &release_on_device, device};
  }
  bool serves(const Half& half) const {
    auto& memory = static_cast<DeviceMemory&>(*half.memory);
    if (guard_of(type)->getDevice() != memory.device) return false;
    std::shared_ptr<Arena> arena; /* goes after the lock */
    std::lock_guard<std::mutex> lock(mutex());
    arena = memory.arena;
    return arena == nullptr || static_cast<DeviceArena&>(*arena).stream == current_stream(type);
  }
};

/* 0: somebody else has set an allocator of a higher priority, or one that has no raw blocks. */
bool install_on_device(c10::DeviceType type) {
  static std::map<c10::DeviceType, c10::Allocator*> ours;
  auto* before = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(type));
  if (ours.count(type)) return ours[type] == before;
  if (before == nullptr || before->raw_deleter() == nullptr || device_inner != nullptr) return false;
  device_inner = before;
  ours[type] = new DeviceWrapper<c10::DeviceAllocator>(before, type);
  c10::SetAllocator(type, ours[type], 100);
  return c10::GetAllocator(type) == ours[type];
}

/* As it was before. */
void leave_device(c10::DeviceType type) { c10::SetAllocator(type, device_inner, 100); }

} // namespace
