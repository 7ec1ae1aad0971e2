/* PyTorch's allocators, wrapped: while a half of a step runs on a thread, its blocks lie at planned addresses.

   Enters: for each half, the slots that its allocations are expected to ask for, in order. Leaves: memory, and a log of
   every block of the iteration (bytes, when it was taken, when it was given back), from which the next layout is packed.
   The one idea is SuperNeurons' pool with STAlloc's addresses: a training step asks for the same blocks in the same order
   every time, so where each one lies is decided before the step and no allocator searches during it.

   Safe whatever the layout says: a slot is taken only if no live block shares a byte with it. Everything that is not as
   expected is served apart, and counted.

   What runs between a forward and the half after it (a loss outside of the model, gradients that autograd makes of it)
   is a half too on the CPU, which nobody announces: it is open on the thread of its forward until the next half begins,
   and takes large blocks only. The caller holds all that it takes.

   `steps.h` has what all devices share, `pages.h` the CPU's memory, `device_arena.h` that of accelerators. */

#include "device_arena.h"
#include "pages.h"
#include "steps.h"

#include <pthread.h>

namespace {

constexpr int64_t kAbi = 3; // library.py checks it

std::shared_ptr<Memory> memory_at(int64_t number) {
  std::lock_guard<std::mutex> lock(mutex());
  return memory_of(number);
}

void lock_all() { mutex().lock(); }
void unlock_all() { mutex().unlock(); }

} // namespace

#define EXPORTED __attribute__((visibility("default")))

extern "C" {

EXPORTED int64_t vdnn_step_abi() { return kAbi; }

/* 1: every CPU allocation of PyTorch comes through here from now on, and is passed on outside of steps. */
EXPORTED int vdnn_step_install(int64_t smallest_nbytes) {
  static bool is_first = true;
  smallest = static_cast<size_t>(smallest_nbytes);
  if (!install_on_cpu()) return 0;
  if (std::exchange(is_first, false)) pthread_atfork(lock_all, unlock_all, unlock_all);
  return 1;
}

/* The same of a kind of accelerator, by the name of one of them. */
EXPORTED int vdnn_step_install_on(const char* device) { return install_on_device(c10::Device(device).type()); }

/* Its tensors come from elsewhere: whoever is asked for that allocator finds it as it was. */
EXPORTED void vdnn_step_leave(const char* device) { leave_device(c10::Device(device).type()); }

EXPORTED int64_t vdnn_step_open() { return open(std::make_shared<PagesMemory>()); }

EXPORTED int64_t vdnn_step_open_on(const char* device) {
  return open(std::make_shared<DeviceMemory>(c10::Device(device)));
}

/* Blocks that are alive stay valid; their memory goes back with the last of them. */
EXPORTED void vdnn_step_close(int64_t number) {
  std::shared_ptr<Memory> memory;
  {
    std::lock_guard<std::mutex> lock(mutex());
    memory.swap(memories().at(number));
  }
  memory->close();
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

/* The half that this thread has just begun is one that nobody has seen: the plan's blocks, by their begin. */
EXPORTED void vdnn_step_guide(const int64_t* planned, int64_t num_planned) {
  auto* first = reinterpret_cast<const Planned*>(planned);
  running.back().guide = {first, first + num_planned};
}

/* This thread's innermost half runs this instruction of its plan now. */
EXPORTED void vdnn_step_at(int64_t position) {
  if (!running.empty()) running.back().position = position;
}

/* By 1: what this thread's innermost half takes from now on is not the same in every step. By -1: that is over. */
EXPORTED void vdnn_step_aside(int64_t change) {
  if (!running.empty()) running.back().num_asides += change;
}

/* Whether the block at this address should have the place of this number in the guide, and the next one gets it. */
EXPORTED int vdnn_step_wants_its_place(int64_t address, int64_t number) {
  return wants_its_place(reinterpret_cast<void*>(address), number);
}

/* Two storages exchange their memory. */
EXPORTED void vdnn_step_exchange(int64_t one, int64_t other) {
  exchange(*reinterpret_cast<c10::StorageImpl*>(one), *reinterpret_cast<c10::StorageImpl*>(other));
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

EXPORTED int vdnn_step_reserve(int64_t number, int64_t nbytes) { return memory_at(number)->reserve(nbytes); }

/* Between two iterations: idle memory goes back, for work that needs its room. */
EXPORTED void vdnn_step_purge(int64_t number) { memory_at(number)->purge(); }

EXPORTED void vdnn_step_statistics(int64_t number, int64_t* into) {
  std::lock_guard<std::mutex> lock(mutex());
  auto memory = memory_of(number);
  memory->counted.arena_nbytes = memory->arena == nullptr ? 0 : memory->arena->nbytes;
  memory->counted.num_stashed = memory->num_stashed;
  std::memcpy(into, &memory->counted, sizeof(Statistics));
}

} // extern "C"
