// attention_forward and attention_backward on Arrays. Outputs are allocated by the
// caller, so that every array library gets its own kind back.
#include <nanobind/stl/array.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "array.hpp"
#include "bindings.hpp"
#include "core/device.hpp"
#include "core/parallel.hpp"
#include "core/run.hpp"
#include "operations/attention/attention.hpp"
#include "operations/attention/names.hpp"
#include "operations/attention/validate.hpp"
#include "options.hpp"
#include "outputs.hpp"
#include "tilewise/attention.hpp"

namespace tilewise::python {
namespace {

/// `fresh_out`: out was allocated for this call, as softmax_lse and all gradients always are.
void forward(const Array& q, const Array& k, const Array& v, const Array& out, const Array* softmax_lse,
             const Options& options, const std::string& implementation, int torch_threads, bool fresh_out,
             std::uintptr_t stream) {
  ForwardArguments arguments{q.view(), k.view(), v.view(), out.view(), view_of(softmax_lse), options.value};
  arguments.options.clear_rest = fresh_out;
  const nb::gil_scoped_release release;
  const core::FrameworkThreads threads(torch_threads);
  const TensorView lse = fresh_out ? TensorView{} : arguments.softmax_lse;  // beside an out whose rest stays
  clear_lse_before(lse, arguments.options.cu_seqlens_q, stream_pointer(stream));
  attention_forward(arguments, {implementation}, stream_pointer(stream));
  clear_rest_of_lse(lse, arguments.options.cu_seqlens_q);
}

/// The gradients that the caller wants; each may be None.
void backward(const Array& dout, const Array* dlse, const Array& q, const Array& k, const Array& v, const Array& out,
              const Array& softmax_lse, const Array* dq, const Array* dk, const Array* dv, const Array* dbias,
              const Array* dsink, const Options& options, const std::string& implementation, int torch_threads,
              std::uintptr_t stream) {
  BackwardArguments arguments;
  arguments.dout = dout.view();
  arguments.dlse = view_of(dlse);
  arguments.q = q.view();
  arguments.k = k.view();
  arguments.v = v.view();
  arguments.out = out.view();
  arguments.softmax_lse = softmax_lse.view();
  arguments.dq = view_of(dq);
  arguments.dk = view_of(dk);
  arguments.dv = view_of(dv);
  arguments.dbias = view_of(dbias);
  arguments.dsink = view_of(dsink);
  arguments.options = options.value;
  arguments.options.clear_rest = true;
  const nb::gil_scoped_release release;
  const core::FrameworkThreads threads(torch_threads);
  attention_backward(arguments, {implementation}, stream_pointer(stream));
}

using Sizes = std::vector<std::int64_t>;

Sizes sizes_of(const TensorView& view) { return Sizes(view.shape.begin(), view.shape.begin() + view.rank); }

/// The shapes of out and softmax_lse. Checks the whole call, so that nothing is allocated for a
/// wrong one. `backward`: gradients are to follow, which q's dtype must have.
std::pair<Sizes, Sizes> output_shapes(const Array& q, const Array& k, const Array& v, const Options& options,
                                      bool backward) {
  if (backward) {
    operations::attention::validate_dtype(Operation::attention_backward, q.view().dtype, q.view().device.type);
  }
  ForwardArguments arguments{q.view(), k.view(), v.view(), {}, {}, options.value};
  arguments.out = planned_out(arguments.q, arguments.v);
  arguments.softmax_lse = planned_lse(arguments.q, arguments.options.layout);
  validate(operations::attention::describe(operations::attention::call_of(arguments)));
  return {sizes_of(arguments.out), sizes_of(arguments.softmax_lse)};
}

TensorView planned_like(const TensorView& view, bool wanted) {
  return wanted && view.defined() ? contiguous(view.dtype, view.device, view.rank, view.shape) : TensorView{};
}

/// Makes the plans that a call and its backward pass (for the gradients that are wanted: q, k, v, bias, sink) will
/// find, and loads their kernels.
void warm_up(const Array& q, const Array& k, const Array& v, const Array* out, bool softmax_lse,
             const std::array<bool, 5>& gradients, const Options& options, const std::string& implementation) {
  ForwardArguments forward{q.view(), k.view(), v.view(), view_of(out), {}, options.value};
  if (out == nullptr) forward.out = planned_out(forward.q, forward.v);
  forward.options.clear_rest = out == nullptr;
  if (softmax_lse) forward.softmax_lse = planned_lse(forward.q, options.value.layout);
  BackwardArguments backward;
  backward.q = forward.q;
  backward.k = forward.k;
  backward.v = forward.v;
  backward.out = forward.out;
  backward.dout = planned_like(forward.out, true);
  backward.softmax_lse = forward.softmax_lse;
  backward.dq = planned_like(forward.q, gradients[0]);
  backward.dk = planned_like(forward.k, gradients[1]);
  backward.dv = planned_like(forward.v, gradients[2]);
  backward.dbias = planned_like(options.value.bias, gradients[3]);
  backward.dsink = planned_like(options.value.sink, gradients[4]);
  backward.options = options.value;
  backward.options.clear_rest = true;
  const nb::gil_scoped_release release;
  operations::attention::prepare_call(operations::attention::call_of(forward), {implementation});
  if (out != nullptr) check_given_out(forward);
  const bool any = std::find(gradients.begin(), gradients.end(), true) != gradients.end();
  if (any) operations::attention::prepare_call(operations::attention::call_of(backward), {implementation});
}

/// Waits for a GPU's stream; returns at once for an array on the CPU.
void synchronize(const Array& array, std::uintptr_t stream) {
  const Device device = array.view().device;
  const nb::gil_scoped_release release;
  if (device.type != DeviceType::cpu)
    core::device_system(device.type)->synchronize(device.index, stream_pointer(stream));
}

}  // namespace

void bind_attention(nb::module_& module) {
  const auto optional = [](const char* name) { return nb::arg(name).none(); };
  module.def("attention_forward", &forward, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("out"),
             optional("softmax_lse"), nb::arg("options"), nb::arg("implementation") = "", nb::arg("torch_threads") = 0,
             nb::arg("fresh_out") = true, nb::arg("stream") = 0,
             "Writes out and, where given, softmax_lse. torch_threads: torch.get_num_threads(), or 0 without torch.\n\n"
             "fresh_out: rows of out that belong to no packed sequence become 0 too. stream: a GPU's, as a number.");
  module.def("warm_up", &warm_up, nb::arg("q"), nb::arg("k"), nb::arg("v"), optional("out"), nb::arg("softmax_lse"),
             nb::arg("gradients"), nb::arg("options"), nb::arg("implementation") = "",
             "Makes the plans of a call and loads their kernels. gradients: those wanted of q, k, v, bias and sink.");
  module.def("synchronize", &synchronize, nb::arg("array"), nb::arg("stream") = 0,
             "Waits for what a GPU's stream holds; on the CPU there is nothing to wait for.");
  module.def("output_shapes", &output_shapes, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("options"),
             nb::arg("backward") = false, "Checks a forward call and returns the shapes of out and softmax_lse.");
  module.def("attention_backward", &backward, nb::arg("dout"), optional("dlse"), nb::arg("q"), nb::arg("k"),
             nb::arg("v"), nb::arg("out"), nb::arg("softmax_lse"), optional("dq"), optional("dk"), optional("dv"),
             optional("dbias"), optional("dsink"), nb::arg("options"), nb::arg("implementation") = "",
             nb::arg("torch_threads") = 0, nb::arg("stream") = 0, "Writes the gradients that are given.");
}

}  // namespace tilewise::python
