/* Streams are threads, events are points in their queues; and the guard through which torch asks for both.

   Note: [Virtual time]
   Each stream has a clock. What runs on it advances it: `advance` by what a test says a kernel takes, a copy between
   host and device by its bytes over the link's rate, a wait to the clock of the event. The host takes no time. So the
   duration of a step follows from the order of its work alone, on any machine, and `elapsed_time` tells it. */

#include "vdev.h"

#include <ctime>

namespace vdev {

namespace {

constexpr int kMostStreams = 32; /* per device; then they are given out again, as CUDA's pool does */

thread_local int thread_device = 0;
thread_local std::array<int64_t, kNumDevices> thread_streams{};

std::mutex streams_mutex;

struct StreamPool {
  std::array<std::unique_ptr<Stream>, kMostStreams + 1> streams; /* 0 is the default one */
  int num_given = 0;
};

StreamPool& pool(int device) {
  static auto* pools = new std::array<StreamPool, kNumDevices>; /* threads may outlive every static object */
  return (*pools)[device];
}

Stream& stream_at(int device, int64_t id) {
  std::lock_guard<std::mutex> lock(streams_mutex);
  auto& found = pool(device).streams.at(id);
  if (!found) {
    found = std::make_unique<Stream>();
    found->device = device;
    found->id = id;
  }
  return *found;
}

void sleep_us(int64_t us) {
  if (us > 0) std::this_thread::sleep_for(std::chrono::microseconds(us));
}

}  // namespace

void check_not_lost(int device) {
  if (!controls.is_lost[device]) return;
  std::string words = "vdev error: device " + std::to_string(device) + " was reset, and nothing of it is left";
  throw c10::AcceleratorError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, 719, std::move(words));
}

uint64_t Stream::enqueue(std::function<void()> item) {
  check_not_lost(device);
  if (controls.blocking) {
    drain();
    sleep_us(controls.delay_us);
    item();
    return last_ticket();
  }
  std::lock_guard<std::mutex> lock(mutex);
  if (!has_thread) {
    std::thread([this] { work(); }).detach();
    has_thread = true;
  }
  waiting.push_back(std::move(item));
  changed.notify_all();
  return ++queued;
}

void Stream::work() {
  thread_device = device;
  thread_streams[device] = id;
  std::unique_lock<std::mutex> lock(mutex);
  while (true) {
    changed.wait(lock, [this] { return !waiting.empty(); });
    auto item = std::move(waiting.front());
    waiting.pop_front();
    lock.unlock();
    std::exception_ptr thrown;
    try {
      sleep_us(controls.delay_us);
      item();
    } catch (...) {
      thrown = std::current_exception();
    }
    item = nullptr; /* what it holds goes before anybody hears that it is done */
    lock.lock();
    if (thrown && !error) error = thrown;
    ++done;
    changed.notify_all();
  }
}

void Stream::wait(uint64_t ticket) {
  std::unique_lock<std::mutex> lock(mutex);
  changed.wait(lock, [&] { return done >= ticket; });
  check_not_lost(device);
  if (error) std::rethrow_exception(std::exchange(error, nullptr));
}

uint64_t Stream::last_ticket() {
  std::lock_guard<std::mutex> lock(mutex);
  return queued;
}

bool Stream::reached(uint64_t ticket) {
  std::lock_guard<std::mutex> lock(mutex);
  return done >= ticket;
}

int current_device() { return thread_device; }

int exchange_device(int device) {
  TORCH_CHECK(device < kNumDevices, "there is no device vdev:", device, "; there are ", kNumDevices);
  return device < 0 ? thread_device : std::exchange(thread_device, device);
}

Stream& current_stream(int device) { return stream_at(device, thread_streams[device]); }
Stream& stream_of(const c10::Stream& stream) { return stream_at(stream.device_index(), stream.id()); }

c10::Stream as_c10(const Stream& stream) {
  c10::Device device(kType, static_cast<c10::DeviceIndex>(stream.device));
  return c10::Stream(c10::Stream::UNSAFE, device, stream.id);
}

void synchronize_device(int device) {
  for (int id = 0; id <= kMostStreams; ++id) {
    std::unique_lock<std::mutex> lock(streams_mutex);
    auto* stream = pool(device).streams[id].get();
    lock.unlock();
    if (stream != nullptr) stream->drain();
  }
}

namespace {

std::mutex spans_mutex;
std::vector<std::array<double, 5>> spans;

/* One recording of an event: a queue reaches it once. */
struct Recorded {
  int device;
  std::mutex mutex;
  std::condition_variable changed;
  bool is_reached = false;
  std::chrono::steady_clock::time_point at;
  double clock_s = 0;

  explicit Recorded(int device) : device(device) {}

  void reach(double now_s) {
    std::lock_guard<std::mutex> lock(mutex);
    is_reached = true;
    clock_s = now_s;
    at = std::chrono::steady_clock::now();
    changed.notify_all();
  }
  void wait() {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [this] { return is_reached; });
  }
  bool query() {
    std::lock_guard<std::mutex> lock(mutex);
    return is_reached;
  }
};

struct Event {
  std::shared_ptr<Recorded> last;
};

std::shared_ptr<Recorded> record_on(Stream& stream) {
  auto recorded = std::make_shared<Recorded>(stream.device);
  stream.enqueue([recorded, &stream] { recorded->reach(stream.clock_s); });
  return recorded;
}

void run_after(Stream& stream, std::shared_ptr<Recorded> recorded) {
  stream.enqueue([recorded = std::move(recorded), &stream] {
    recorded->wait();
    stream.clock_s = std::max(stream.clock_s, recorded->clock_s);
  });
}

int index_of(c10::Device device) { return device.index() < 0 ? current_device() : device.index(); }

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::DeviceIndex deviceCount() const noexcept override { return kNumDevices; }

  c10::Device exchangeDevice(c10::Device device) const override {
    return {kType, static_cast<c10::DeviceIndex>(exchange_device(device.index()))};
  }
  c10::Device getDevice() const override { return {kType, static_cast<c10::DeviceIndex>(current_device())}; }
  void setDevice(c10::Device device) const override { exchange_device(device.index()); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0) thread_device = device.index();
  }

  c10::Stream getStream(c10::Device device) const override { return as_c10(current_stream(index_of(device))); }
  c10::Stream getDefaultStream(c10::Device device) const override { return as_c10(stream_at(index_of(device), 0)); }
  c10::Stream getNewStream(c10::Device device, int) const override {
    int index = index_of(device);
    std::unique_lock<std::mutex> lock(streams_mutex);
    int id = pool(index).num_given++ % kMostStreams + 1;
    lock.unlock();
    return as_c10(stream_at(index, id));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return getNewStream(device, 0); }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    auto before = getStream(stream.device());
    thread_streams[stream.device_index()] = stream.id();
    return before;
  }
  bool queryStream(const c10::Stream& stream) const override {
    auto& asked = stream_of(stream);
    return asked.reached(asked.last_ticket());
  }
  void synchronizeStream(const c10::Stream& stream) const override { stream_of(stream).drain(); }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    synchronize_device(device < 0 ? current_device() : device);
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag) const override {
    if (*event == nullptr) *event = new Event;
    static_cast<Event*>(*event)->last = record_on(stream_of(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr) return;
    run_after(stream_of(stream), static_cast<Event*>(event)->last);
  }
  bool queryEvent(void* event) const override {
    if (event != nullptr) check_not_lost(static_cast<Event*>(event)->last->device);
    return event == nullptr || static_cast<Event*>(event)->last->query();
  }
  void synchronizeEvent(void* event) const override {
    if (event == nullptr) return;
    check_not_lost(static_cast<Event*>(event)->last->device);
    static_cast<Event*>(event)->last->wait();
  }
  double elapsedTime(void* first, void* second, const c10::DeviceIndex) const override {
    auto begin = static_cast<Event*>(first)->last, end = static_cast<Event*>(second)->last;
    TORCH_CHECK(begin->query() && end->query(), "an event has not been reached yet");
    if (controls.virtual_time) return 1e3 * (end->clock_s - begin->clock_s);
    return std::chrono::duration<double, std::milli>(end->at - begin->at).count();
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }

  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    c10::getDeviceAllocator(kType)->recordStream(data, stream);
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

}  // namespace

void wait_for(Stream& waiting, Stream& other) {
  if (&waiting == &other) return;
  run_after(waiting, record_on(other));
}

void advance(Stream& stream, Span kind, double label, double seconds) {
  double begin_s = stream.clock_s;
  stream.clock_s += seconds;
  std::lock_guard<std::mutex> lock(spans_mutex);
  spans.push_back({static_cast<double>(stream.id), static_cast<double>(kind), label, begin_s, stream.clock_s});
}

void begin_virtual_time(bool is_on) {
  for (int device = 0; device < kNumDevices; ++device) {
    synchronize_device(device);
    std::lock_guard<std::mutex> lock(streams_mutex);
    for (auto& stream : pool(device).streams)
      if (stream) stream->clock_s = 0;
  }
  std::lock_guard<std::mutex> lock(spans_mutex);
  spans.clear();
  controls.virtual_time = is_on;
}

at::Tensor virtual_spans() {
  std::lock_guard<std::mutex> lock(spans_mutex);
  auto found = at::empty({static_cast<int64_t>(spans.size()), 5}, at::dtype(at::kDouble).device(at::kCPU));
  if (!spans.empty()) std::memcpy(found.data_ptr(), spans.data(), spans.size() * sizeof(spans[0]));
  return found;
}

}  // namespace vdev
