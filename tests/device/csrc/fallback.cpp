/* Every op that has no kernel here runs the CPU's kernel on aliases of its arguments.

   No bytes are copied, so results have the CPU's bits. What the kernel allocates lies in the device's memory already
   (`KernelAllocator`), and its results are adopted by moving their blocks.

   Views touch no bytes and do not wait. Structured out= ops are queued: their result's shape is known before they run,
   and torch writes every functional and in-place structured op as an out= op on memory that it has allocated. All others
   wait for the current stream and run in the caller, as they would on any device whose kernels' shapes depend on data. */

#include "vdev.h"

namespace vdev {

namespace {

bool is_ours(const at::Tensor& tensor) { return tensor.defined() && tensor.is_privateuseone(); }

const std::set<std::string>& structured_names() {
  static const auto* names = [] {
    auto* found = new std::set<std::string>;
    auto& dispatcher = c10::Dispatcher::singleton();
    for (auto& name : dispatcher.getAllOpNames()) {
      auto op = dispatcher.findOp(name);
      if (op && op->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional))
        found->insert(name.name);
    }
    return found;
  }();
  return *names;
}

/* What the schema says of an op, asked once. */
struct Traits {
  bool is_view = false, writes = false, is_structured_out = false, is_random = false, mixes = false;
  int generator_argument = -1;

  explicit Traits(const c10::OperatorHandle& op) {
    auto& schema = op.schema();
    for (size_t i = 0; i < schema.arguments().size(); ++i) {
      auto& argument = schema.arguments()[i];
      bool is_written = argument.alias_info() && argument.alias_info()->isWrite();
      writes |= is_written;
      is_structured_out |= is_written && argument.is_out();
      if (argument.type()->str() == "Generator?") generator_argument = static_cast<int>(i);
    }
    for (auto& returned : schema.returns()) is_view |= returned.alias_info() && !returned.alias_info()->isWrite();
    is_view &= !writes;
    is_structured_out &= structured_names().count(schema.name()) > 0;
    is_random = op.hasTag(at::Tag::nondeterministic_seeded);
    mixes = schema.name().find("index") != std::string::npos; /* indices may lie on the CPU */
  }

  static const Traits& of(const c10::OperatorHandle& op) {
    static std::mutex mutex;
    static auto* known = new std::unordered_map<c10::OperatorName, std::unique_ptr<Traits>>;
    std::lock_guard<std::mutex> lock(mutex);
    auto& traits = (*known)[op.operator_name()];
    if (!traits) traits = std::make_unique<Traits>(op);
    return *traits;
  }
};

/* Around an op that draws from the CPU's default generator and takes no other: it finds the device's state there.
   Another thread must not draw on the CPU meanwhile; the kernel itself takes the generator's lock. */
struct SwappedGenerator {
  at::CPUGeneratorImpl *theirs, *ours;

  explicit SwappedGenerator(int device)
      : theirs(at::check_generator<at::CPUGeneratorImpl>(at::detail::getDefaultCPUGenerator())),
        ours(at::check_generator<at::CPUGeneratorImpl>(cpu_generator_of(default_generator(device)))) {
    swap();
  }
  ~SwappedGenerator() { swap(); }

  void swap() {
    auto engine = theirs->engine();
    theirs->set_engine(ours->engine());
    ours->set_engine(engine);
    auto single = theirs->next_float_normal_sample();
    theirs->set_next_float_normal_sample(ours->next_float_normal_sample());
    ours->set_next_float_normal_sample(single);
    auto dual = theirs->next_double_normal_sample();
    theirs->set_next_double_normal_sample(ours->next_double_normal_sample());
    ours->set_next_double_normal_sample(dual);
  }
};

template <typename Visit>
void visit_tensors(const c10::IValue& value, Visit visit) {
  if (value.isTensor()) return visit(value.toTensor());
  if (value.isTensorList())
    for (const at::Tensor& tensor : value.toTensorVector()) visit(tensor);
  else if (value.isOptionalTensorList())
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector())
      if (tensor) visit(*tensor);
}

/* The device of all of them. A CPU tensor of one number may be beside them. */
int device_of(const c10::OperatorHandle& op, const Traits& traits, c10::ArrayRef<c10::IValue> arguments) {
  int device = -1;
  bool has_cpu = false;
  for (auto& argument : arguments) {
    if (argument.isDevice() && argument.toDevice().type() == kType) {
      auto index = argument.toDevice().index();
      if (device < 0) device = index < 0 ? current_device() : index;
    }
    visit_tensors(argument, [&](const at::Tensor& tensor) {
      if (!tensor.defined()) return;
      if (!is_ours(tensor)) {
        has_cpu |= tensor.dim() > 0 && tensor.numel() > 0;
        return;
      }
      int found = tensor.device().index();
      TORCH_CHECK(
          device < 0 || device == found, "Expected all tensors to be on the same device, but ", op.operator_name(),
          " found vdev:", device, " and vdev:", found);
      device = found;
    });
  }
  TORCH_CHECK(
      !has_cpu || device < 0 || traits.mixes, "Expected all tensors to be on the same device, but ", op.operator_name(),
      " found vdev:", device, " and cpu");
  return device < 0 ? current_device() : device;
}

c10::IValue aliased(const c10::IValue& value, Aliases& aliases) {
  if (value.isTensor()) return aliases.of(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(aliases.of(tensor));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector())
      list.push_back(tensor ? std::optional<at::Tensor>(aliases.of(*tensor)) : std::nullopt);
    return list;
  }
  if (value.isDevice() && value.toDevice().type() == kType) return c10::Device(c10::kCPU);
  if (value.isGenerator()) {
    auto generator = value.toGenerator();
    TORCH_CHECK(
        generator.device().type() == kType, "Expected a 'vdev' device type for generator but found '",
        generator.device().type(), "'");
    return cpu_generator_of(generator);
  }
  return value;
}

/* Whether the shapes that a queued kernel will find are those that it will leave. */
bool may_be_queued(const Traits& traits, c10::ArrayRef<c10::IValue> arguments, const c10::FunctionSchema& schema) {
  if (!traits.is_structured_out) return false;
  bool may = true;
  for (size_t i = 0; i < arguments.size(); ++i) {
    bool is_out = schema.arguments()[i].is_out();
    visit_tensors(arguments[i], [&](const at::Tensor& tensor) {
      if (tensor.defined()) may &= is_ours(tensor) ? !is_out || tensor.numel() > 0 : tensor.dim() == 0 && !is_out;
    });
  }
  return may;
}

void queue(const c10::OperatorHandle& op, std::vector<c10::IValue> arguments, int device) {
  auto& stream = current_stream(device);
  for (auto& argument : arguments) /* numbers are read now: the caller may change them */
    if (argument.isTensor() && argument.toTensor().defined() && !is_device_address(argument.toTensor().data_ptr()))
      argument = argument.toTensor().clone();
  stream.enqueue([op, arguments = std::move(arguments), &stream, threads = at::get_num_threads()]() mutable {
    KernelScope scope(stream, true);
    if (at::get_num_threads() != threads) at::set_num_threads(threads); /* where work is cut, some kernels round otherwise */
    at::AutoDispatchBelowADInplaceOrView below;
    c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    std::vector<std::pair<at::Tensor, std::vector<int64_t>>> shapes;
    for (auto& argument : arguments)
      if (argument.isTensor() && argument.toTensor().defined())
        shapes.emplace_back(argument.toTensor(), argument.toTensor().sizes().vec());
    torch::jit::Stack stack(std::move(arguments));
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
    for (auto& [tensor, shape] : shapes)
      TORCH_CHECK(tensor.sizes() == shape, op.operator_name(), " has another shape than its out=: give an empty one");
  });
}

}  // namespace

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  auto& schema = op.schema();
  auto& traits = Traits::of(op);
  size_t num_arguments = schema.arguments().size();
  std::vector<c10::IValue> given(stack->end() - static_cast<int64_t>(num_arguments), stack->end());
  torch::jit::drop(*stack, num_arguments);

  int device = device_of(op, traits, given);
  Aliases aliases(device);
  std::vector<c10::IValue> arguments;
  for (auto& value : given) arguments.push_back(aliased(value, aliases));
  bool draws = traits.generator_argument >= 0 && given[traits.generator_argument].isNone();
  if (draws) arguments[traits.generator_argument] = cpu_generator_of(default_generator(device));

  if (may_be_queued(traits, given, schema)) {
    queue(op, arguments, device);
    for (size_t i = 0; i < num_arguments; ++i)
      if (schema.arguments()[i].is_out() && !schema.returns().empty()) stack->push_back(given[i]);
    return;
  }

  auto& stream = current_stream(device);
  if (!traits.is_view) stream.drain();
  torch::jit::Stack results = arguments; /* the kernel takes its arguments away: ours stay */
  {
    KernelScope scope(stream, false);
    at::AutoDispatchBelowADInplaceOrView below;
    std::optional<SwappedGenerator> swapped;
    if (traits.is_random && traits.generator_argument < 0) swapped.emplace(device);
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &results);
  }

  std::vector<std::pair<at::Tensor, at::Tensor>> written;
  for (size_t i = 0; i < num_arguments; ++i) {
    auto* info = schema.arguments()[i].alias_info();
    if (info == nullptr || !info->isWrite()) continue;
    std::vector<at::Tensor> ours, theirs;
    visit_tensors(given[i], [&](const at::Tensor& tensor) { ours.push_back(tensor); });
    visit_tensors(arguments[i], [&](const at::Tensor& tensor) { theirs.push_back(tensor); });
    for (size_t j = 0; j < ours.size(); ++j) {
      if (is_ours(ours[j])) aliases.write_back(ours[j], theirs[j]);
      written.emplace_back(ours[j], theirs[j]);
    }
  }
  auto to_device = [&](const at::Tensor& cpu) {
    for (auto& [ours, alias] : written)
      if (alias.is_same(cpu)) return ours;
    return aliases.result(cpu);
  };
  for (auto& value : results) {
    if (value.isTensor()) {
      stack->push_back(to_device(value.toTensor()));
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(to_device(tensor));
      stack->push_back(list);
    } else {
      stack->push_back(value);
    }
  }
}

namespace {

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

}  // namespace

/* Ops with a CPU kernel and a composite one would take the composite one, whose bits are others. Those that have no
   autograd formula of their own stay composite: their parts have one. */
void prefer_cpu_kernels() {
  using Key = c10::DispatchKey;
  static auto* library = new torch::Library(torch::Library::IMPL, "aten", Key::PrivateUse1, __FILE__, __LINE__);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (auto& name : dispatcher.getAllOpNames()) {
    auto op = dispatcher.findOp(name);
    if (!op || name.name.rfind("aten::", 0) != 0 || !op->hasKernelForDispatchKey(Key::CPU)) continue;
    bool is_explicit = op->hasKernelForDispatchKey(Key::CompositeExplicitAutograd);
    bool is_implicit = op->hasKernelForDispatchKey(Key::CompositeImplicitAutograd);
    if (!is_explicit && !(is_implicit && op->hasKernelForDispatchKey(Key::Autograd))) continue;
    bool is_structured = op->hasKernelForDispatchKey(Key::CompositeExplicitAutogradNonFunctional);
    if (is_structured && !is_implicit) continue; /* ends in its out= op, and that has a kernel */
    if (op->hasKernelForDispatchKey(Key::PrivateUse1)) continue;
    auto full = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    library->impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&fallback>());
  }
}

}  // namespace vdev
