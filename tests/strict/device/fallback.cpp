// Every operator that has no kernel of its own here: the CPU's kernel, as a task of the current stream.
//
// The host finds what the operator returns by calling it on the Meta device, allocates that, and goes on.
// Mistakes in arguments are errors at once; what only the numbers show (an index out of range) surfaces at a
// synchronisation. Where what is returned cannot be known without the numbers (`nonzero`, `equal`), the host
// waits.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/as_strided_cpu_dispatch.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <set>
#include <stdexcept>

#include "generators.h"
#include "tensors.h"

namespace strict {
namespace {

using c10::IValue;
using torch::jit::Stack;

// Operators that take tensors of the host beside those of the device, on CUDA as well.
const std::set<std::string> MIXED{
    "aten::index",         "aten::index_put",
    "aten::index_put_",    "aten::_index_put_impl_",
    "aten::_unsafe_index", "aten::_pack_padded_sequence",
    "aten::_ctc_loss",
};

// Operators whose sums CUDA keeps in float32 where the tensors are of lower precision; so are their
// statistics.
const std::set<std::string> WIDENED{
    "aten::native_batch_norm",
    "aten::native_batch_norm_backward",
    "aten::_native_batch_norm_legit",
    "aten::_native_batch_norm_legit.no_stats",
    "aten::_native_batch_norm_legit_no_training",
    "aten::native_layer_norm",
    "aten::native_layer_norm_backward",
    "aten::native_group_norm",
    "aten::native_group_norm_backward",
};

// The value with `change` made to each tensor in it.
template <class Change>
IValue mapped(const IValue& value, Change&& change) {
  if (value.isTensor()) return value.toTensor().defined() ? IValue(change(value.toTensor())) : value;
  if (value.isTensorList()) {
    c10::List<at::Tensor> made;
    for (const at::Tensor& tensor : value.toTensorVector())
      made.push_back(tensor.defined() ? change(tensor) : tensor);
    return made;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> made;
    for (const auto& tensor : value.toOptionalTensorVector())
      made.push_back(tensor && tensor->defined() ? std::optional<at::Tensor>(change(*tensor)) : tensor);
    return made;
  }
  return value;
}

// A number of the host is read when the operator is called.
at::Tensor by_value(const at::Tensor& tensor) {
  auto made = tensor.clone();
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) made.unsafeGetTensorImpl()->set_wrapped_number(true);
  return made;
}

// torch 2.11 drops the arguments of an operator with two `out=` before it returns references to them.
void call(const c10::OperatorHandle& op, Stack& values) {
  const Stack kept = values;
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  op.callBoxed(&values);
}

bool low_precision(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kBFloat16 || tensor.scalar_type() == at::kHalf;
}

// Where a returned value comes from.
struct Origin {
  enum Kind { MADE, WRITTEN, VIEW } kind = MADE;
  int argument = -1;
};

class Call {
 public:
  Call(const c10::OperatorHandle& op, Stack* stack)
      : op_(op), schema_(op.schema()), stack_(stack), begin_(stack->size() - schema_.arguments().size()) {
    find_device();
    find_origins();
  }

  void run() {
    c10::DeviceGuard guard(c10::Device(TYPE, device_));
    std::vector<IValue> returned(schema_.returns().size());
    if (!infer())
      block(returned);
    else if (views())
      view(returned);
    else
      launch(returned);
    stack_->erase(stack_->begin() + begin_, stack_->end());
    for (auto& value : returned) stack_->push_back(std::move(value));
  }

 private:
  size_t count() const { return schema_.arguments().size(); }
  const c10::Argument& about(size_t i) const { return schema_.arguments()[i]; }
  const IValue& argument(size_t i) const { return (*stack_)[begin_ + i]; }
  bool written(size_t i) const { return about(i).alias_info() && about(i).alias_info()->isWrite(); }

  void find_device() {
    bool host = false;
    for (size_t i = 0; i < count(); ++i) {
      mapped(argument(i), [&](const at::Tensor& tensor) {
        if (ours(tensor)) {
          const auto here = tensor.device().index();
          TORCH_CHECK(device_ < 0 || device_ == here,
                      "Expected all tensors to be on the same device, but found at least two devices, strict:",
                      int(device_), " and strict:", int(here), "! (", op_.operator_name(), ")");
          device_ = here;
        } else {
          host = host || tensor.dim() > 0 || written(i);
        }
        return tensor;
      });
      if (argument(i).isDevice() && device_ < 0) {
        const auto device = argument(i).toDevice();
        device_ = device.has_index() ? device.index() : current_device();
      }
    }
    TORCH_CHECK(device_ >= 0, "strict: ", op_.operator_name(), " names no device");
    TORCH_CHECK(!host || MIXED.count(schema_.name()),
                "Expected all tensors to be on the same device, but found at least two devices, strict:",
                int(device_), " and cpu! (", op_.operator_name(), ")");
  }

  void find_origins() {
    for (const auto& returned : schema_.returns()) {
      Origin origin;
      if (const auto* alias = returned.alias_info()) {
        for (size_t i = 0; i < count(); ++i)
          if (about(i).alias_info() && *about(i).alias_info() == *alias) origin.argument = int(i);
        if (origin.argument >= 0) origin.kind = alias->isWrite() ? Origin::WRITTEN : Origin::VIEW;
      }
      origins_.push_back(origin);
    }
  }

  bool views() const {
    for (const auto& origin : origins_)
      if (origin.kind == Origin::VIEW) return true;
    return false;
  }

  // Call the operator on the Meta device; false where that does not tell what it returns.
  bool infer() {
    for (const auto& returned : schema_.returns())
      if (returned.type()->str().find("Tensor") == std::string::npos) return false;
    for (size_t i = 0; i < count(); ++i) {
      IValue value = argument(i);
      if (value.isDevice()) value = c10::Device(at::kMeta);
      if (value.isGenerator()) value = IValue();
      forms_.push_back(mapped(value, [](const at::Tensor& t) { return ours(t) || t.dim() ? form(t) : t; }));
    }
    try {
      call(op_, forms_);
    } catch (const std::exception&) {
      return false;  // a mistake of the caller is one for the CPU as well, whose message is the better one
    }
    return true;
  }

  // Arguments for the CPU's kernel.
  Stack work() {
    Stack made;
    for (size_t i = 0; i < count(); ++i) {
      IValue value = argument(i);
      if (value.isDevice()) value = c10::Device(at::kCPU);
      if (about(i).type()->str().find("Generator") != std::string::npos) value = generator(value);
      made.push_back(mapped(value, [](const at::Tensor& t) { return ours(t) ? inside(t) : by_value(t); }));
    }
    return made;
  }

  IValue generator(const IValue& given) {
    auto from = given.isNone() ? default_generator(device_) : given.toGenerator();
    if (from.device().type() != TYPE) return given;
    std::lock_guard<std::mutex> hold(from.mutex());
    auto* numbers = static_cast<at::CPUGeneratorImpl*>(from.unsafeGetGeneratorImpl());
    return at::detail::createCPUGenerator(numbers->random64());
  }

  // The host waits for the stream, and calls the CPU's kernel itself.
  void block(std::vector<IValue>& returned) {
    note_blocking(c10::toString(op_.operator_name()));
    host_waits(device_);
    Stack values = work();
    call(op_, values);
    for (size_t i = 0; i < returned.size(); ++i) {
      if (origins_[i].argument < 0) {
        returned[i] =
            mapped(values[i], [&](const at::Tensor& t) { return copy_from(t, empty_as(device_, t), false); });
        continue;
      }
      returned[i] = argument(origins_[i].argument);
      if (returned[i].isTensor() && returned[i].toTensor().sizes() != values[i].toTensor().sizes())
        copy_from_and_resize(values[i].toTensor(), returned[i].toTensor());
    }
  }

  void view(std::vector<IValue>& returned) {
    for (size_t i = 0; i < returned.size(); ++i) {
      const auto& base = argument(origins_[i].argument).toTensor();
      returned[i] = mapped(forms_[i], [&](const at::Tensor& t) {
        TORCH_CHECK(t.scalar_type() == base.scalar_type(), "strict: ", op_.operator_name(),
                    " changes the dtype of a view");
        return at::cpu::as_strided(base, t.sizes(), t.strides(), base.storage_offset() + t.storage_offset());
      });
    }
  }

  void launch(std::vector<IValue>& returned) {
    for (size_t i = 0; i < returned.size(); ++i)
      if (origins_[i].kind == Origin::WRITTEN && about(origins_[i].argument).is_out() &&
          forms_[i].isTensor()) {
        const auto& out = argument(origins_[i].argument).toTensor();
        if (out.sizes() != forms_[i].toTensor().sizes()) out.resize_(forms_[i].toTensor().sizes());
      }
    auto values = std::make_shared<Stack>(work());
    std::vector<std::vector<at::Tensor>> targets(returned.size());
    for (size_t i = 0; i < returned.size(); ++i) {
      if (origins_[i].kind == Origin::WRITTEN) {
        returned[i] = argument(origins_[i].argument);
        continue;
      }
      returned[i] = mapped(forms_[i], [&](const at::Tensor& t) {
        auto made = empty_as(device_, t);
        targets[i].push_back(inside(made));
        return made;
      });
    }
    const bool wide = WIDENED.count(c10::toString(op_.operator_name()));
    current_queue(device_).launch([op = op_, values, targets, wide] {
      try {
        wide ? compute_wide(op, *values) : call(op, *values);
        for (size_t i = 0; i < targets.size(); ++i) deliver(targets[i], (*values)[i]);
      } catch (const std::exception& error) {
        throw std::runtime_error(c10::toString(op.operator_name()) + ": " + message(error));
      }
    });
  }

  // In float32; running statistics of lower precision are written back.
  static void compute_wide(const c10::OperatorHandle& op, Stack& values) {
    std::vector<std::pair<at::Tensor, at::Tensor>> back;
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = mapped(values[i], [&](const at::Tensor& tensor) {
        if (!low_precision(tensor)) return tensor;
        auto made = tensor.to(at::kFloat);
        if (op.schema().arguments()[i].name().rfind("running_", 0) == 0) back.emplace_back(tensor, made);
        return made;
      });
    call(op, values);
    for (auto& [tensor, made] : back) tensor.copy_(made);
  }

  static void deliver(const std::vector<at::Tensor>& targets, const IValue& made) {
    size_t next = 0;
    mapped(made, [&](const at::Tensor& tensor) {
      if (next == targets.size()) return tensor;
      const auto& target = targets[next++];
      // Statistics that the CPU does not keep: nobody may read them.
      if (tensor.numel() == 0 && target.numel() != 0) return tensor;
      const bool convert = target.is_floating_point() && tensor.is_floating_point();
      TORCH_CHECK(target.sizes() == tensor.sizes() && (convert || target.dtype() == tensor.dtype()),
                  "a result of shape ", tensor.sizes(), " and ", tensor.dtype(), " where Meta said ",
                  target.sizes(), " and ", target.dtype());
      target.copy_(tensor);
      return tensor;
    });
  }

  const c10::OperatorHandle& op_;
  const c10::FunctionSchema& schema_;
  Stack* stack_;
  const size_t begin_;
  DeviceIndex device_ = -1;
  std::vector<Origin> origins_;
  Stack forms_;  // what the operator returns, on Meta
};

void fallback(const c10::OperatorHandle& op, Stack* stack) { Call(op, stack).run(); }

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

}  // namespace
}  // namespace strict
