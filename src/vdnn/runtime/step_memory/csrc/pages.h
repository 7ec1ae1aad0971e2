/* The CPU's memory of steps: an arena of pages, and blocks whose pages are moved out of it and back.

   A block is one of five kinds:
     in place  at its offset in the arena;
     moved     at an address outside of the arena, with pages that are taken out of one or more extents of the arena and
               move back when the block is freed: no page is faulted, none is resident twice. So lie blocks for which
               the arena has no hole in one run, and what the caller holds (outputs, gradients);
     kept      what outlives the iteration: a mapping of its own; a freed one waits for the next request of its size;
     alone     unexpected and large: a mapping of its own, gone when it is freed;
     small     unexpected and small: malloc's. */

#pragma once

#include "steps.h"

#include <c10/core/CPUAllocator.h>

#include <sys/mman.h>

namespace {

constexpr int64_t kMapped = 64 << 10;   // unexpected blocks from here on are mappings of their own
constexpr int64_t kPage = 4096;
constexpr int64_t kHugePage = 2 << 20;
constexpr int kPopulateWrite = 23;      // MADV_POPULATE_WRITE, Linux 5.14; not in every libc's headers
constexpr int64_t kLongestBetween = 64 << 10; // blocks; what takes more before the next half is no loss

c10::Allocator* inner = nullptr;
size_t smallest = 0; /* smaller blocks are malloc's and are not logged: there are thousands of them */

char* map_pages(int64_t nbytes) {
  void* found = mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return found == MAP_FAILED ? nullptr : static_cast<char*>(found);
}

/* Where a huge page fits whole, the kernel may give one: the resident bytes stay those that were asked for. */
void prefer_huge_pages(char* begin, int64_t nbytes) {
  auto first = rounded_up(reinterpret_cast<int64_t>(begin), kHugePage);
  auto last = reinterpret_cast<int64_t>(begin + nbytes) / kHugePage * kHugePage;
  if (last - first >= kHugePage) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
}

/* Pages change their address; with `stays`, the old address stays mapped, without pages. False: the kernel refuses. */
bool move_pages(char* from, char* to, int64_t nbytes, bool stays) {
  int flags = MREMAP_MAYMOVE | MREMAP_FIXED | (stays ? MREMAP_DONTUNMAP : 0);
  return mremap(from, nbytes, nbytes, flags, to) != MAP_FAILED;
}


/* Touched once. */
struct PagesArena final : Arena {
  char* mapping = nullptr;

  static std::shared_ptr<PagesArena> reserve(int64_t nbytes) {
    auto arena = std::make_shared<PagesArena>();
    arena->nbytes = rounded_up(nbytes, kPage);
    arena->mapping = map_pages(arena->nbytes + kHugePage);
    if (arena->mapping == nullptr) return nullptr;
    arena->base = reinterpret_cast<char*>(rounded_up(reinterpret_cast<int64_t>(arena->mapping), kHugePage));
    prefer_huge_pages(arena->base, arena->nbytes);
    madvise(arena->base, arena->nbytes, kPopulateWrite); /* where the kernel cannot, the first step faults them in */
    return arena;
  }

  ~PagesArena() override {
    if (mapping != nullptr) munmap(mapping, nbytes + kHugePage);
  }
};

struct PagesMemory final : Memory {
  std::multimap<int64_t, char*> waiting; /* kept blocks that were freed, by size */

  void drop_waiting() {
    for (auto& [nbytes, address] : waiting) unmap_block(address, nbytes);
    waiting.clear();
  }
  char* map_block(int64_t nbytes) {
    auto length = rounded_up(nbytes, kPage);
    char* address = map_pages(length);
    if (address == nullptr) return nullptr;
    prefer_huge_pages(address, length);
    counted.mapped_nbytes += length;
    counted.mapped_peak_nbytes = std::max(counted.mapped_peak_nbytes, counted.mapped_nbytes);
    return address;
  }
  void unmap_block(char* address, int64_t nbytes) {
    munmap(address, rounded_up(nbytes, kPage));
    counted.mapped_nbytes -= rounded_up(nbytes, kPage);
  }

  bool reserve(int64_t nbytes) override {
    std::lock_guard<std::mutex> lock(mutex());
    arena.reset(); /* before the next one is touched: the two are not resident together */
    drop_waiting();
    if (nbytes > 0) arena = PagesArena::reserve(nbytes);
    return nbytes == 0 || arena != nullptr;
  }
  /* The arena stays reserved and faults its pages in again. While a block lies in it, nothing is given back; what was
     moved out of it has its own pages. */
  void purge() override {
    std::lock_guard<std::mutex> lock(mutex());
    drop_waiting();
    if (arena == nullptr || arena->num_in_place > 0) return;
    madvise(arena->base, arena->nbytes, MADV_DONTNEED);
  }
  void close() override {
    std::lock_guard<std::mutex> lock(mutex());
    drop_waiting();
    is_closed = true;
    open_between = -1;
    arena.reset();
  }
};

void release(void* address);

bool are_free(const Arena& arena, const Extent* extents, int64_t count) {
  for (int64_t k = 0; k < count; ++k) {
    auto begin = extents[k].offset, end = begin + extents[k].nbytes;
    if (!arena.is_free(begin, end)) return false;
  }
  return true;
}

/* The pages of the extents at one run of addresses. A piece that cannot be moved gives its pages back to the system, and
   the block faults pages of its own there: slower, and as many bytes. */
char* gather(PagesMemory& memory, Arena& arena, const Extent* extents, int64_t count, Block& block) {
  auto length = rounded_up(block.nbytes, kPage);
  char* address = map_pages(length);
  if (address == nullptr) return nullptr;
  char* to = address;
  for (int64_t k = 0; k < count; ++k) {
    char* from = arena.base + extents[k].offset;
    bool is_moved = move_pages(from, to, extents[k].nbytes, true);
    if (!is_moved) madvise(from, extents[k].nbytes, MADV_DONTNEED);
    memory.counted.num_moves_refused += !is_moved;
    block.pieces.push_back({extents[k].offset, extents[k].nbytes, is_moved});
    to += extents[k].nbytes;
  }
  return address;
}

void scatter(Arena& arena, char* address, const Block& block) {
  for (const auto& piece : block.pieces) {
    if (!piece.is_moved || !move_pages(address, arena.base + piece.offset, piece.nbytes, false)) {
      munmap(address, piece.nbytes);
    }
    address += piece.nbytes;
  }
}

/* Null: something else lives there, or the arena is gone. */
char* take_slot(PagesMemory& memory, const Half& half, const Slot& slot, Block& block) {
  auto& arena = memory.arena;
  const Extent* extents = half.extents.data() + slot.first_extent;
  int64_t nbytes = 0;
  for (int64_t k = 0; k < slot.num_extents; ++k) nbytes += extents[k].nbytes;
  if (arena == nullptr || nbytes != rounded_up(slot.nbytes, kPage) || !are_free(*arena, extents, slot.num_extents)) {
    return nullptr;
  }
  char* address = arena->base + extents[0].offset;
  if (slot.kind == kMoved) {
    address = gather(memory, *arena, extents, slot.num_extents, block);
    if (address == nullptr) return nullptr;
  } else {
    block.pieces.push_back({extents[0].offset, extents[0].nbytes, false});
    ++arena->num_in_place;
  }
  for (const auto& piece : block.pieces) arena->live[piece.offset] = piece.offset + piece.nbytes;
  block.arena = arena;
  block.kind = slot.kind;
  block.is_held = slot.is_held != 0;
  return address;
}

char* take_kept(PagesMemory& memory, int64_t nbytes, Block& block) {
  block.kind = kKept;
  block.is_held = true;
  auto found = memory.waiting.find(nbytes);
  if (found == memory.waiting.end()) return memory.map_block(nbytes);
  char* address = found->second;
  memory.waiting.erase(found);
  return address;
}

char* take_unexpected(PagesMemory& memory, int64_t nbytes, Block& block) {
  block.kind = nbytes < kMapped ? kSmall : kAlone;
  return block.kind == kSmall ? static_cast<char*>(inner->raw_allocate(nbytes)) : memory.map_block(nbytes);
}

/* Null: the system gave nothing, or the half takes no more; PyTorch's own allocator is to serve it or to say so. */
void* take(Half& half, int64_t nbytes) {
  std::lock_guard<std::mutex> lock(mutex());
  auto& memory = static_cast<PagesMemory&>(*half.memory);
  bool is_between = half.between >= 0;
  if (is_between && ++half.num_taken > kLongestBetween) {
    memory.open_between = -1;
    return nullptr;
  }
  auto block = new_block(half, nbytes);
  const Slot* slot = next_slot(half, nbytes);
  char* address = nullptr;
  if (half.repeats && nbytes >= kMapped) {
    if (memory.waiting.count(nbytes) == 0) memory.drop_waiting(); /* other work begins */
    address = take_kept(memory, nbytes, block);
  } else if (slot != nullptr && slot->kind == kKept && nbytes >= kMapped) {
    address = take_kept(memory, nbytes, block);
  } else if (slot != nullptr && slot->kind != kKept) {
    address = take_slot(memory, half, *slot, block);
  }
  bool is_expected = address != nullptr || (slot != nullptr && slot->kind == kKept);
  if (address == nullptr) address = take_unexpected(memory, nbytes, block);
  if (address == nullptr) return nullptr;
  note_taken(memory, half.number, block, is_expected);
  if (block.kind != kSmall) c10::profiledCPUMemoryReporter().New(address, nbytes);
  blocks().emplace(address, std::move(block));
  return address;
}

void give_back(char* address, Block& block) {
  auto& memory = static_cast<PagesMemory&>(*block.memory);
  note_released(memory, block);
  switch (block.kind) {
    case kMoved:
    case kInPlace:
      if (block.kind == kMoved) scatter(*block.arena, address, block);
      block.arena->num_in_place -= block.kind == kInPlace;
      for (const auto& piece : block.pieces) block.arena->live.erase(piece.offset);
      break;
    case kKept:
      if (memory.is_closed) {
        memory.unmap_block(address, block.nbytes);
      } else {
        memory.waiting.emplace(block.nbytes, address);
      }
      break;
    case kAlone:
      memory.unmap_block(address, block.nbytes);
      break;
    default:
      inner->raw_deallocate(address);
  }
}

void release(void* address) {
  Block block; /* destroyed after the lock: it may be the last to hold its memory or an arena that was replaced */
  {
    std::lock_guard<std::mutex> lock(mutex());
    auto found = blocks().find(address);
    if (found != blocks().end() && found->second.memory->type == c10::DeviceType::CPU) {
      block = std::move(found->second);
      blocks().erase(found);
      if (block.kind != kSmall) c10::profiledCPUMemoryReporter().Delete(address);
      give_back(static_cast<char*>(address), block);
      return;
    }
  }
  inner->raw_deallocate(address); /* was taken outside of any step */
}


struct CpuAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t nbytes) override {
    Half* half = nbytes < smallest ? nullptr : innermost(c10::DeviceType::CPU);
    bool is_small = half != nullptr && half->between >= 0 && nbytes < kMapped;
    void* address = half == nullptr || is_small ? nullptr : take(*half, static_cast<int64_t>(nbytes));
    if (address == nullptr) return inner->allocate(nbytes);
    return {address, address, &release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t nbytes) const override { default_copy_data(to, from, nbytes); }
};

/* 1: every CPU allocation of PyTorch comes through here from now on, and is passed on outside of steps. 0: somebody else
   has set an allocator of a higher priority, or one that has no raw blocks. */
bool install_on_cpu() {
  static auto* ours = new CpuAllocator;
  if (c10::GetCPUAllocator() == ours) return true;
  auto* before = c10::GetCPUAllocator();
  if (before->raw_deleter() == nullptr) return false;
  inner = before;
  c10::SetCPUAllocator(ours, 100);
  return c10::GetCPUAllocator() == ours;
}

} // namespace
