/* What tests turn, as ops without tensors: torch.ops.vdev. */

#include "vdev.h"

namespace vdev {

void install_hooks();
void prefer_cpu_kernels();

namespace {

void install() {
  install_allocators();
  install_hooks();
  at::setHostAllocator(kType, pinned_allocator());
  prefer_cpu_kernels();
}

void synchronize_all() {
  for (int device = 0; device < kNumDevices; ++device) synchronize_device(device);
}

void set_blocking(bool is_blocking) {
  synchronize_all();
  controls.blocking = is_blocking;
}

void set_poison(bool is_poisoned) {
  synchronize_all();
  controls.poison = is_poisoned;
}

void sleep_on_stream(double seconds) {
  current_stream(current_device()).enqueue([seconds] {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  });
}

/* What is queued ends before the device is lost: nothing of a test runs beside the next one. */
void set_lost(int64_t device, bool is_lost) {
  if (is_lost) synchronize_device(static_cast<int>(device));
  controls.is_lost[device] = is_lost;
}

void compute_takes(double seconds, int64_t label) {
  auto& stream = current_stream(current_device());
  stream.enqueue([&stream, seconds, label] { advance(stream, Span::kCompute, static_cast<double>(label), seconds); });
}

TORCH_LIBRARY(vdev, m) {
  m.def("install() -> ()", &install);
  m.def("synchronize_all() -> ()", &synchronize_all);
  m.def("default_generator(int device) -> Generator?", [](int64_t device) -> std::optional<at::Generator> {
    return default_generator(static_cast<int>(device));
  });
  m.def("set_limit(int device, int nbytes) -> ()", [](int64_t device, int64_t nbytes) {
    set_limit(static_cast<int>(device), nbytes);
  });
  m.def("set_others(int device, int nbytes) -> ()", [](int64_t device, int64_t nbytes) {
    set_others(static_cast<int>(device), nbytes);
  });
  m.def("set_most_pinned(int nbytes) -> ()", [](int64_t nbytes) { controls.most_pinned = nbytes; });
  m.def("pinned_nbytes() -> int[]", []() -> std::vector<int64_t> {
    auto stats = pinned_allocator()->get_stats();
    return {stats.allocated_bytes.current, stats.allocated_bytes.peak};
  });
  m.def("reset_peak_pinned() -> ()", [] { pinned_allocator()->reset_peak_stats(); });
  m.def("set_lost(int device, bool is_lost) -> ()", &set_lost);
  m.def("begin_virtual_time(bool is_on) -> ()", &begin_virtual_time);
  m.def("compute_takes(float seconds, int label) -> ()", &compute_takes);
  m.def("virtual_spans() -> Tensor", &virtual_spans);
  m.def("set_segments(int small_nbytes, int large_nbytes) -> ()", [](int64_t small, int64_t large) {
    set_segments(small, large);
  });
  m.def("set_copy_rate(float bytes_per_s) -> ()", [](double rate) { controls.copy_bytes_per_s = rate; });
  m.def("set_delay(int microseconds) -> ()", [](int64_t us) { controls.delay_us = us; });
  m.def("set_poison(bool is_poisoned) -> ()", &set_poison);
  m.def("set_blocking(bool is_blocking) -> ()", &set_blocking);
  m.def("sleep(float seconds) -> ()", &sleep_on_stream);
}

}  // namespace

}  // namespace vdev
