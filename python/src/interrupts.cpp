// Python's signals during calls; see interrupts.hpp.
#include "interrupts.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <memory>

#include "core/interrupt.hpp"

namespace tilewise::python {
namespace {

namespace nb = nanobind;

/// Python runs the handlers of signals on its main thread alone, the one that the process started with.
bool on_main_thread() noexcept { return syscall(SYS_gettid) == getpid(); }

void poll_signals() {
  const nb::gil_scoped_acquire gil;  // released, or held by this very thread
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

constexpr core::InterruptSource kSignals{&on_main_thread, &poll_signals};

int raise_pending(void* error) {
  const std::unique_ptr<nb::python_error> owned(static_cast<nb::python_error*>(error));
  owned->restore();
  return -1;
}

}  // namespace

void answer_signals() { core::set_interrupt_source(&kSignals); }

void raise_on_return(const nb::python_error& error) {
  const nb::gil_scoped_acquire gil;
  auto owned = std::make_unique<nb::python_error>(error);
  if (Py_AddPendingCall(&raise_pending, owned.get()) != 0) throw nb::python_error(error);
  (void)owned.release();
}

}  // namespace tilewise::python
