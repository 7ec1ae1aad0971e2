/* What every memory of steps has, whatever device it is of: halves with their slots, the log of an iteration, and which
   bytes of an arena are taken. */

#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Stream.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace {

constexpr size_t kLookAhead = 16;       // so far a half may run ahead of its layout before its slots are lost
constexpr size_t kLongestLog = 4 << 20; // entries; past them an iteration is not recorded

enum Kind : int64_t { kInPlace, kMoved, kKept, kAlone, kSmall, kHole, kGone };

/* What the next allocation is expected to be. `kind` is one of the first three. */
struct Slot {
  int64_t nbytes, kind, is_held, first_extent, num_extents;
};

struct Extent {
  int64_t offset, nbytes;
};

/* What a plan says of a block: taken at instruction `begin`, gone before `end`; an `offset` below 0 is outside. It is
   given out once, unless it is asked for again by its number. */
struct Planned {
  int64_t nbytes, begin, end, offset, is_given;
};

/* One block of the iteration. `end` is -1 while it is alive, `offset` where it has no place in the arena; `half` counts
   the halves of the iteration. */
struct LogEntry {
  int64_t nbytes, begin, end, half, is_held, kind, offset;
};

/* Since the iteration began, but for the first two and `mapped_nbytes`, which are of now. */
struct Statistics {
  int64_t arena_nbytes, num_stashed, num_planned, num_unexpected, unexpected_nbytes, num_moves_refused, mapped_nbytes,
      mapped_peak_nbytes, between_nbytes, between_peak_nbytes;
};

int64_t rounded_up(int64_t nbytes, int64_t to) { return (nbytes + to - 1) / to * to; }

/* Reserved once and kept. */
struct Arena {
  char* base = nullptr;
  int64_t nbytes = 0;
  std::map<int64_t, int64_t> live; /* begin -> end of every extent that is taken */
  int64_t num_in_place = 0;        /* blocks that lie here and were not moved */

  virtual ~Arena() = default;

  bool is_free(int64_t begin, int64_t end) const {
    if (begin < 0 || begin >= end || end > nbytes) return false;
    auto after = live.lower_bound(begin);
    if (after != live.end() && after->first < end) return false;
    return after == live.begin() || std::prev(after)->second <= begin;
  }
};

struct Memory;

/* Some bytes of the arena. Pages of a moved block that could not be moved are its own. */
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
  std::vector<c10::Stream> used_on; /* streams beside the one that computes, by `record_stream` */
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
  std::vector<Planned> guide; /* by `begin`: where blocks lie that nobody has seen yet */
  int64_t position = -1;      /* the instruction that runs, where somebody says so */
  int64_t num_asides = 0;     /* what is taken now differs from step to step, and is gone before anything else is taken */
  int64_t wanted = -1;        /* the place in the guide that the next block of its size gets */

  bool is_over() const;
};

/* What one virtualized model runs in: its arena, and the log of the iteration. */
struct Memory {
  c10::DeviceType type = c10::DeviceType::CPU;
  std::shared_ptr<Arena> arena;
  int64_t num_halves = 0, clock = 0, generation = 0;
  int64_t num_stashed = 0; /* live blocks that no caller holds */
  bool is_closed = false;
  std::atomic<int64_t> open_between{-1}; /* the serial of the one that is open; asked without the lock */
  std::vector<LogEntry> log;
  Statistics counted{};

  virtual ~Memory() = default;
  /* An arena of so many bytes instead of the one that is there. False: the system refuses it, and there is none. */
  virtual bool reserve(int64_t nbytes) = 0;
  /* Idle memory goes back, between two iterations. The lock is not held, as in `reserve`. */
  virtual void purge() = 0;
  virtual void close() = 0;
};

bool Half::is_over() const { return between >= 0 && memory->open_between != between; }

std::mutex& mutex() {
  static auto* one = new std::mutex; /* never destroyed: tensors are freed after static objects are */
  return *one;
}
std::unordered_map<void*, Block>& blocks() {
  static auto* one = new std::unordered_map<void*, Block>;
  return *one;
}
thread_local std::vector<Half> running; /* innermost last */

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

/* The half that this thread is in and that serves this kind of device, if any. */
Half* innermost(c10::DeviceType type) {
  while (!running.empty() && running.back().is_over()) running.pop_back();
  return running.empty() || running.back().memory->type != type ? nullptr : &running.back();
}

Block new_block(const Half& half, int64_t nbytes) {
  auto& memory = *half.memory;
  bool is_between = half.between >= 0;
  return {half.memory, nullptr, kSmall, nbytes, memory.generation, memory.log.size(), is_between, is_between, {}, {}};
}

/* It was taken, and was expected or not. */
void note_taken(Memory& memory, int64_t half, const Block& block, bool is_expected) {
  auto& counted = memory.counted;
  counted.num_planned += is_expected;
  counted.num_unexpected += !is_expected;
  counted.unexpected_nbytes += is_expected ? 0 : block.nbytes;
  memory.num_stashed += !block.is_held;
  if (block.is_between) {
    counted.between_nbytes += block.nbytes;
    counted.between_peak_nbytes = std::max(counted.between_peak_nbytes, counted.between_nbytes);
  }
  if (memory.log.size() < kLongestLog) {
    auto offset = block.pieces.empty() ? -1 : block.pieces.front().offset;
    memory.log.push_back({block.nbytes, memory.clock++, -1, half, block.is_held, block.kind, offset});
  }
}

/* It is given back. */
void note_released(Memory& memory, const Block& block) {
  if (block.generation == memory.generation) {
    if (block.entry < memory.log.size()) memory.log[block.entry].end = memory.clock++;
    if (block.is_between) memory.counted.between_nbytes -= block.nbytes;
  }
  memory.num_stashed -= !block.is_held;
}

std::vector<std::shared_ptr<Memory>>& memories() {
  static auto* one = new std::vector<std::shared_ptr<Memory>>;
  return *one;
}

std::shared_ptr<Memory> memory_of(int64_t number) { return memories().at(number); }

int64_t open(std::shared_ptr<Memory> memory) {
  std::lock_guard<std::mutex> lock(mutex());
  memories().push_back(std::move(memory));
  return static_cast<int64_t>(memories().size()) - 1;
}

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

} // namespace
