// Work without the GIL, on any thread, up to the interpreter's end.
#pragma once

#include <Python.h>
#include <unistd.h>

namespace penstock::binding {

// Like nanobind's gil_scoped_release, but safe on daemon threads. One that wants the GIL back while
// the interpreter ends is unwound by Python before 3.14, which the C++ frames above would turn into
// std::terminate: it stays here instead, holding nothing, until the process is gone.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  ~WithoutGil() {
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {
      for (;;) ::pause();
    }
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* state_;
};

}  // namespace penstock::binding
