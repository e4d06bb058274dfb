// The extension module tilewise._core: tilewise over DLPack arrays, without any array library.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "bindings.hpp"
#include "core/num_threads.hpp"
#include "core/openmp_threads.hpp"
#include "core/spelling.hpp"
#include "core/thrown.hpp"
#include "interrupts.hpp"
#include "jit/search_paths.hpp"
#include "tilewise/attention.hpp"
#include "tilewise/error.hpp"

namespace {

namespace nb = nanobind;

PyObject* exception_type(tilewise::ErrorCode code) {
  switch (code) {
    case tilewise::ErrorCode::invalid_argument:
      return PyExc_ValueError;
    case tilewise::ErrorCode::invalid_type:
      return PyExc_TypeError;
    case tilewise::ErrorCode::unsupported:
      return PyExc_NotImplementedError;
    case tilewise::ErrorCode::runtime:
      return PyExc_RuntimeError;
  }
  return PyExc_RuntimeError;
}

void translate(const std::exception_ptr& exception, void* /*payload*/) {
  try {
    std::rethrow_exception(exception);
  } catch (const tilewise::Error& error) {
    PyErr_SetString(exception_type(error.code()), error.what());
  } catch (const std::exception&) {
    throw;  // nanobind knows what each of them is in Python
  } catch (...) {
    const tilewise::core::Thrown thrown = tilewise::core::describe_thrown(exception);
    PyErr_SetString(thrown.is_out_of_memory ? PyExc_MemoryError : PyExc_RuntimeError, thrown.message.c_str());
  }
}

/// NVRTC often comes as a Python package; only the interpreter knows all places of packages.
void tell_package_folders() {
  std::vector<std::string> folders;
  for (const nb::handle entry : nb::module_::import_("sys").attr("path")) {
    std::string folder;
    if (nb::try_cast(entry, folder) && folder.ends_with("-packages")) folders.push_back(folder);
  }
  tilewise::jit::add_package_folders(folders);
}

std::string nearest_word(std::string_view word, const std::vector<std::string>& known) {
  const std::vector<std::string_view> views(known.begin(), known.end());
  return std::string(tilewise::core::nearest_word(word, views));
}

int get_num_threads(int torch_threads) {
  const tilewise::core::FrameworkThreads threads(torch_threads);
  return tilewise::core::num_threads();
}

}  // namespace

NB_MODULE(_core, module) {
  nb::register_exception_translator(&translate);
  tell_package_folders();
  tilewise::python::answer_signals();
  for (tilewise::python::Bind* bind : tilewise::python::kParts) bind(module);
  module.def("nearest_word", &nearest_word, nb::arg("word"), nb::arg("known"),
             "The one of `known` that a mistyped word was probably meant to be, or \"\".");
  module.def("set_num_threads", &tilewise::core::set_num_threads, nb::arg("num_threads"), nb::arg("torch_threads"),
             "torch_threads: torch.get_num_threads(), or 0 without torch.");
  module.def("get_num_threads", &get_num_threads, nb::arg("torch_threads"));
  module.def(
      "share_openmp_threads", &tilewise::core::share_openmp_threads, nb::arg("shared"),
      "Whether calls work on the threads of the OpenMP runtime that a framework has loaded, where there is one.");
  module.def("version", &tilewise::version);
}
