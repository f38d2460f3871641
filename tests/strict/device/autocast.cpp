// Autocast: torch's own lists of operators in lower precision, in float32, and in the widest dtype of their
// arguments.
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/library.h>

#define LOW(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define FLOAT32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define FLOAT32_OUT(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define WIDEST(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)

namespace strict {

using namespace at;  // in which the macros are written

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  AT_FORALL_LOWER_PRECISION_FP(LOW)
  AT_FORALL_FP32(FLOAT32)
  AT_FORALL_FP32_SET_OPT_DTYPE(FLOAT32_OUT)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
  AT_FORALL_PROMOTE(WIDEST)
}

}  // namespace strict
