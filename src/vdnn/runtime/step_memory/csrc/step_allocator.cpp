/* PyTorch's CPU allocator, wrapped: while a half of a step runs on a thread, its blocks lie at planned addresses.

   Enters: for each half, the slots that its allocations are expected to ask for, in order. Leaves: memory, and a log of
   every block of the iteration (bytes, when it was taken, when it was given back), from which the next layout is packed.
   The one idea is SuperNeurons' pool with STAlloc's addresses: a training step asks for the same blocks in the same order
   every time, so where each one lies is decided before the step and no allocator searches during it.

   Safe whatever the layout says: a slot is taken only if no live block shares a page with it. Everything that is not as
   expected gets memory of its own, which goes back to the system when it is freed, and is counted.

   What runs between a forward and the half after it (a loss outside of the model, gradients that autograd makes of it)
   is a half too, which nobody announces: it is open on the thread of its forward until the next half begins, and takes
   large blocks only. The caller holds all that it takes.

   A block is one of five kinds:
     in place  at its offset in the arena;
     moved     at an address outside of the arena, with pages that are taken out of one or more extents of the arena and
               move back when the block is freed: no page is faulted, none is resident twice. So lie blocks for which
               the arena has no hole in one run, and what the caller holds (outputs, gradients);
     kept      what outlives the iteration: a mapping of its own; a freed one waits for the next request of its size;
     mapped    unexpected and large: a mapping of its own, gone when it is freed;
     small     unexpected and small: malloc's. */

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <pthread.h>
#include <sys/mman.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace {

constexpr int64_t kAbi = 2;             // library.py checks it
constexpr int64_t kMapped = 64 << 10;   // unexpected blocks from here on are mappings of their own
constexpr int64_t kPage = 4096;
constexpr int64_t kHugePage = 2 << 20;
constexpr int kPopulateWrite = 23;      // MADV_POPULATE_WRITE, Linux 5.14; not in every libc's headers
constexpr size_t kLookAhead = 16;       // so far a half may run ahead of its layout before its slots are lost
constexpr size_t kLongestLog = 4 << 20; // entries; past them an iteration is not recorded
constexpr int64_t kLongestBetween = 64 << 10; // blocks; what takes more before the next half is no loss

enum Kind : int64_t { kInPlace, kMoved, kKept, kMappedAlone, kSmall };

/* What the next allocation is expected to be. `kind` is one of the first three. */
struct Slot {
  int64_t nbytes, kind, is_held, first_extent, num_extents;
};

struct Extent {
  int64_t offset, nbytes;
};

/* One block of the iteration. `end` is -1 while it is alive; `half` counts the halves of the iteration. */
struct LogEntry {
  int64_t nbytes, begin, end, half, is_held, kind;
};

/* Since the iteration began, but for the first two and `mapped_nbytes`, which are of now. */
struct Statistics {
  int64_t arena_nbytes, num_stashed, num_planned, num_unexpected, unexpected_nbytes, num_moves_refused, mapped_nbytes,
      mapped_peak_nbytes, between_nbytes, between_peak_nbytes;
};

int64_t rounded_up(int64_t nbytes, int64_t to) { return (nbytes + to - 1) / to * to; }

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

/* Reserved once, touched once, and kept. */
struct Arena {
  char *base = nullptr, *mapping = nullptr;
  int64_t nbytes = 0;
  std::map<int64_t, int64_t> live; /* begin -> end of every extent that is taken */
  int64_t num_in_place = 0;        /* blocks that lie here and were not moved */

  static std::shared_ptr<Arena> reserve(int64_t nbytes) {
    auto arena = std::make_shared<Arena>();
    arena->nbytes = rounded_up(nbytes, kPage);
    arena->mapping = map_pages(arena->nbytes + kHugePage);
    if (arena->mapping == nullptr) return nullptr;
    arena->base = reinterpret_cast<char*>(rounded_up(reinterpret_cast<int64_t>(arena->mapping), kHugePage));
    prefer_huge_pages(arena->base, arena->nbytes);
    madvise(arena->base, arena->nbytes, kPopulateWrite); /* where the kernel cannot, the first step faults them in */
    return arena;
  }

  ~Arena() {
    if (mapping != nullptr) munmap(mapping, nbytes + kHugePage);
  }

  bool is_free(int64_t begin, int64_t end) const {
    auto after = live.lower_bound(begin);
    if (after != live.end() && after->first < end) return false;
    return after == live.begin() || std::prev(after)->second <= begin;
  }
};

struct Memory;

/* Some pages of a moved block. Those that could not be moved are its own. */
struct Piece {
  int64_t offset, nbytes;
  bool is_moved;
};

struct Block {
  std::shared_ptr<Memory> memory;
  std::shared_ptr<Arena> arena;
  int64_t kind, nbytes, generation;
  size_t entry;    /* its line in the log */
  bool is_held;    /* by the caller: it may outlive the iteration */
  bool is_between; /* was taken between two halves */
  std::vector<Piece> pieces;
};

/* What one virtualized model runs in: its arena, the log of the iteration, and what waits for its next use. */
struct Memory {
  std::shared_ptr<Arena> arena;
  int64_t num_halves = 0, clock = 0, generation = 0;
  int64_t num_stashed = 0; /* live blocks that no caller holds */
  bool is_closed = false;
  std::atomic<int64_t> open_between{-1}; /* the serial of the one that is open; asked without the lock */
  std::vector<LogEntry> log;
  std::multimap<int64_t, char*> waiting; /* kept blocks that were freed, by size */
  Statistics counted{};
};

/* A half that runs on this thread. */
struct Half {
  std::shared_ptr<Memory> memory;
  std::vector<Slot> slots;
  std::vector<Extent> extents;
  size_t next_slot;
  int64_t number;
  bool repeats = false; /* the same work again and again: what is freed waits for its next time */
  int64_t between = -1; /* the serial of a time between two halves; -1: this is a half that was announced */
  int64_t num_taken = 0;

  bool is_over() const { return between >= 0 && memory->open_between != between; }
};

std::mutex& mutex() {
  static auto* one = new std::mutex; /* never destroyed: tensors are freed after static objects are */
  return *one;
}
std::unordered_map<void*, Block>& blocks() {
  static auto* one = new std::unordered_map<void*, Block>;
  return *one;
}
c10::Allocator* inner = nullptr;
size_t smallest = 0; /* smaller blocks are malloc's and are not logged: there are thousands of them */
thread_local std::vector<Half> running; /* innermost last */

void release(void* address);

char* map_block(Memory& memory, int64_t nbytes) {
  auto length = rounded_up(nbytes, kPage);
  char* address = map_pages(length);
  if (address == nullptr) return nullptr;
  prefer_huge_pages(address, length);
  memory.counted.mapped_nbytes += length;
  memory.counted.mapped_peak_nbytes = std::max(memory.counted.mapped_peak_nbytes, memory.counted.mapped_nbytes);
  return address;
}

void unmap_block(Memory& memory, char* address, int64_t nbytes) {
  munmap(address, rounded_up(nbytes, kPage));
  memory.counted.mapped_nbytes -= rounded_up(nbytes, kPage);
}

void drop_waiting(Memory& memory) {
  for (auto& [nbytes, address] : memory.waiting) unmap_block(memory, address, nbytes);
  memory.waiting.clear();
}

/* The slot that the layout has for the next block of so many bytes. What came in between and is not here is passed over,
   what is not in the layout is not looked for far. */
const Slot* next_slot(Half& half, int64_t nbytes) {
  auto end = std::min(half.slots.size(), half.next_slot + kLookAhead);
  for (size_t position = half.next_slot; position < end; ++position) {
    if (half.slots[position].nbytes == nbytes) {
      half.next_slot = position + 1;
      return &half.slots[position];
    }
  }
  return nullptr;
}

bool are_free(const Arena& arena, const Extent* extents, int64_t count) {
  for (int64_t k = 0; k < count; ++k) {
    auto begin = extents[k].offset, end = begin + extents[k].nbytes;
    if (begin < 0 || extents[k].nbytes <= 0 || end > arena.nbytes || !arena.is_free(begin, end)) return false;
  }
  return true;
}

/* The pages of the extents at one run of addresses. A piece that cannot be moved gives its pages back to the system, and
   the block faults pages of its own there: slower, and as many bytes. */
char* gather(Memory& memory, Arena& arena, const Extent* extents, int64_t count, Block& block) {
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
char* take_slot(Memory& memory, const Half& half, const Slot& slot, Block& block) {
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

char* take_kept(Memory& memory, int64_t nbytes, Block& block) {
  block.kind = kKept;
  block.is_held = true;
  auto found = memory.waiting.find(nbytes);
  if (found == memory.waiting.end()) return map_block(memory, nbytes);
  char* address = found->second;
  memory.waiting.erase(found);
  return address;
}

char* take_unexpected(Memory& memory, int64_t nbytes, Block& block) {
  block.kind = nbytes < kMapped ? kSmall : kMappedAlone;
  return block.kind == kSmall ? static_cast<char*>(inner->raw_allocate(nbytes)) : map_block(memory, nbytes);
}

/* Null: the system gave nothing, or the half takes no more; PyTorch's own allocator is to serve it or to say so. */
void* take(Half& half, int64_t nbytes) {
  std::lock_guard<std::mutex> lock(mutex());
  auto& memory = *half.memory;
  bool is_between = half.between >= 0;
  if (is_between && ++half.num_taken > kLongestBetween) {
    memory.open_between = -1;
    return nullptr;
  }
  Block block{half.memory, nullptr, kSmall, nbytes, memory.generation, memory.log.size(), is_between, is_between, {}};
  const Slot* slot = next_slot(half, nbytes);
  char* address = nullptr;
  if (half.repeats && nbytes >= kMapped) {
    if (memory.waiting.count(nbytes) == 0) drop_waiting(memory); /* other work begins */
    address = take_kept(memory, nbytes, block);
  } else if (slot != nullptr && slot->kind == kKept && nbytes >= kMapped) {
    address = take_kept(memory, nbytes, block);
  } else if (slot != nullptr && slot->kind != kKept) {
    address = take_slot(memory, half, *slot, block);
  }
  bool is_expected = address != nullptr || (slot != nullptr && slot->kind == kKept);
  if (address == nullptr) address = take_unexpected(memory, nbytes, block);
  if (address == nullptr) return nullptr;
  memory.counted.num_planned += is_expected;
  memory.counted.num_unexpected += !is_expected;
  memory.counted.unexpected_nbytes += is_expected ? 0 : nbytes;
  memory.num_stashed += !block.is_held;
  if (is_between) {
    auto& counted = memory.counted;
    counted.between_nbytes += nbytes;
    counted.between_peak_nbytes = std::max(counted.between_peak_nbytes, counted.between_nbytes);
  }
  if (memory.log.size() < kLongestLog) {
    memory.log.push_back({nbytes, memory.clock++, -1, half.number, block.is_held, block.kind});
  }
  if (block.kind != kSmall) c10::profiledCPUMemoryReporter().New(address, nbytes);
  blocks().emplace(address, std::move(block));
  return address;
}

void give_back(char* address, Block& block) {
  auto& memory = *block.memory;
  if (block.generation == memory.generation) {
    if (block.entry < memory.log.size()) memory.log[block.entry].end = memory.clock++;
    if (block.is_between) memory.counted.between_nbytes -= block.nbytes;
  }
  memory.num_stashed -= !block.is_held;
  switch (block.kind) {
    case kMoved:
    case kInPlace:
      if (block.kind == kMoved) scatter(*block.arena, address, block);
      block.arena->num_in_place -= block.kind == kInPlace;
      for (const auto& piece : block.pieces) block.arena->live.erase(piece.offset);
      break;
    case kKept:
      if (memory.is_closed) {
        unmap_block(memory, address, block.nbytes);
      } else {
        memory.waiting.emplace(block.nbytes, address);
      }
      break;
    case kMappedAlone:
      unmap_block(memory, address, block.nbytes);
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
    if (found != blocks().end()) {
      block = std::move(found->second);
      blocks().erase(found);
      if (block.kind != kSmall) c10::profiledCPUMemoryReporter().Delete(address);
      give_back(static_cast<char*>(address), block);
      return;
    }
  }
  inner->raw_deallocate(address); /* was taken outside of any step */
}

/* The half that this thread is in and that serves such a block, if any. */
Half* innermost(size_t nbytes) {
  while (!running.empty() && running.back().is_over()) running.pop_back();
  if (running.empty()) return nullptr;
  auto& half = running.back();
  return half.between >= 0 && nbytes < kMapped ? nullptr : &half;
}

struct StepAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t nbytes) override {
    Half* half = nbytes < smallest ? nullptr : innermost(nbytes);
    if (half == nullptr) return inner->allocate(nbytes);
    void* address = take(*half, static_cast<int64_t>(nbytes));
    if (address == nullptr) return inner->allocate(nbytes);
    return {address, address, &release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t nbytes) const override { default_copy_data(to, from, nbytes); }
};

std::vector<std::shared_ptr<Memory>>& memories() {
  static auto* one = new std::vector<std::shared_ptr<Memory>>;
  return *one;
}

std::shared_ptr<Memory> memory_of(int64_t number) { return memories().at(number); }

Half& push(
    std::shared_ptr<Memory> memory,
    const int64_t* slots,
    int64_t num_slots,
    const int64_t* extents,
    int64_t num_extents) {
  while (!running.empty() && running.back().is_over()) running.pop_back();
  auto* first_slot = reinterpret_cast<const Slot*>(slots);
  auto* first_extent = reinterpret_cast<const Extent*>(extents);
  auto half_number = memory->num_halves++;
  running.push_back({std::move(memory),
                     {first_slot, first_slot + num_slots},
                     {first_extent, first_extent + num_extents},
                     0,
                     half_number});
  return running.back();
}

void lock_all() { mutex().lock(); }
void unlock_all() { mutex().unlock(); }

} // namespace

#define EXPORTED __attribute__((visibility("default")))

extern "C" {

EXPORTED int64_t vdnn_step_abi() { return kAbi; }

/* 1: every CPU allocation of PyTorch comes through here from now on, and is passed on outside of steps. 0: somebody else
   has set an allocator of a higher priority, or one that has no raw blocks. */
EXPORTED int vdnn_step_install(int64_t smallest_nbytes) {
  smallest = static_cast<size_t>(smallest_nbytes);
  static auto* ours = new StepAllocator;
  if (c10::GetCPUAllocator() == ours) return 1;
  auto* before = c10::GetCPUAllocator();
  if (before->raw_deleter() == nullptr) return 0;
  inner = before;
  c10::SetCPUAllocator(ours, 100);
  if (c10::GetCPUAllocator() != ours) return 0;
  pthread_atfork(lock_all, unlock_all, unlock_all);
  return 1;
}

EXPORTED int64_t vdnn_step_open() {
  std::lock_guard<std::mutex> lock(mutex());
  memories().push_back(std::make_shared<Memory>());
  return static_cast<int64_t>(memories().size()) - 1;
}

/* Blocks that are alive stay valid; their memory goes back with the last of them. */
EXPORTED void vdnn_step_close(int64_t number) {
  std::shared_ptr<Memory> memory;
  std::lock_guard<std::mutex> lock(mutex());
  memory.swap(memories().at(number));
  drop_waiting(*memory);
  memory->is_closed = true;
  memory->open_between = -1;
  memory->arena.reset();
}

/* From here on, this thread's blocks are those of the half. A slot is five numbers (`Slot`), an extent two. */
EXPORTED void vdnn_step_begin_half(
    int64_t number, const int64_t* slots, int64_t num_slots, const int64_t* extents, int64_t num_extents) {
  std::lock_guard<std::mutex> lock(mutex());
  push(memory_of(number), slots, num_slots, extents, num_extents);
}

/* The same for work that is repeated, such as an op that is timed: blocks that are freed wait, and go back to the system
   when a block of another size is asked for. Ends with `end_half`. */
EXPORTED void vdnn_step_begin_repeated(int64_t number) {
  std::lock_guard<std::mutex> lock(mutex());
  push(memory_of(number), nullptr, 0, nullptr, 0).repeats = true;
}

/* The same for what this thread runs until `end_between`, which any thread may call. */
EXPORTED void vdnn_step_begin_between(
    int64_t number, const int64_t* slots, int64_t num_slots, const int64_t* extents, int64_t num_extents) {
  static int64_t serial = 0;
  std::lock_guard<std::mutex> lock(mutex());
  auto& half = push(memory_of(number), slots, num_slots, extents, num_extents);
  half.memory->open_between = half.between = serial++;
}

/* Each thread finds out at its next block. */
EXPORTED void vdnn_step_end_between(int64_t number) {
  std::lock_guard<std::mutex> lock(mutex());
  memory_of(number)->open_between = -1;
}

/* `addresses` are the blocks that the caller of the half keeps. */
EXPORTED void vdnn_step_end_half(int64_t number, const int64_t* addresses, int64_t num_addresses) {
  while (running.back().between >= 0) running.pop_back(); /* of models that were called inside of the half */
  running.pop_back();
  std::lock_guard<std::mutex> lock(mutex());
  auto memory = memory_of(number);
  for (int64_t k = 0; k < num_addresses; ++k) {
    auto found = blocks().find(reinterpret_cast<void*>(addresses[k]));
    if (found == blocks().end()) continue;
    auto& block = found->second;
    if (block.memory != memory || block.is_held) continue;
    block.is_held = true;
    --memory->num_stashed;
    if (block.generation == memory->generation && block.entry < memory->log.size()) {
      memory->log[block.entry].is_held = 1;
    }
  }
}

EXPORTED int64_t vdnn_step_log_length(int64_t number) {
  std::lock_guard<std::mutex> lock(mutex());
  return static_cast<int64_t>(memory_of(number)->log.size());
}

EXPORTED void vdnn_step_read_log(int64_t number, int64_t* into, int64_t length) {
  std::lock_guard<std::mutex> lock(mutex());
  auto memory = memory_of(number);
  auto count = std::min<size_t>(length, memory->log.size());
  std::memcpy(into, memory->log.data(), count * sizeof(LogEntry));
}

/* A new iteration: its log is empty. Blocks of iterations before it that live on are no longer logged. */
EXPORTED void vdnn_step_begin_iteration(int64_t number) {
  std::lock_guard<std::mutex> lock(mutex());
  auto memory = memory_of(number);
  memory->log.clear();
  memory->num_halves = 0;
  memory->clock = 0;
  ++memory->generation;
  memory->counted.num_planned = memory->counted.num_unexpected = memory->counted.unexpected_nbytes = 0;
  memory->counted.num_moves_refused = 0;
  memory->counted.mapped_peak_nbytes = memory->counted.mapped_nbytes;
  memory->counted.between_nbytes = memory->counted.between_peak_nbytes = 0;
}

/* An arena of so many bytes instead of the one that is there. 0: the system refuses it, and there is none. */
EXPORTED int vdnn_step_reserve(int64_t number, int64_t nbytes) {
  std::lock_guard<std::mutex> lock(mutex());
  auto memory = memory_of(number);
  memory->arena.reset(); /* before the next one is touched: the two are not resident together */
  drop_waiting(*memory);
  if (nbytes > 0) memory->arena = Arena::reserve(nbytes);
  return nbytes == 0 || memory->arena != nullptr;
}

/* Between two iterations: idle pages go back to the system, for work that needs their room. The arena stays reserved and
   faults them in again. While a block lies in it, nothing is given back; what was moved out of it has its own pages. */
EXPORTED void vdnn_step_purge(int64_t number) {
  std::lock_guard<std::mutex> lock(mutex());
  auto memory = memory_of(number);
  drop_waiting(*memory);
  if (memory->arena == nullptr || memory->arena->num_in_place > 0) return;
  madvise(memory->arena->base, memory->arena->nbytes, MADV_DONTNEED);
}

EXPORTED void vdnn_step_statistics(int64_t number, int64_t* into) {
  std::lock_guard<std::mutex> lock(mutex());
  auto memory = memory_of(number);
  memory->counted.arena_nbytes = memory->arena == nullptr ? 0 : memory->arena->nbytes;
  memory->counted.num_stashed = memory->num_stashed;
  std::memcpy(into, &memory->counted, sizeof(Statistics));
}

} // extern "C"
