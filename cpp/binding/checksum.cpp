// The checksum of containers and checkpoints.
#include <nanobind/nanobind.h>

#include "binding/gil.hpp"
#include "ground/crc32c.hpp"

namespace nb = nanobind;

namespace penstock::binding {
namespace {

constexpr Py_ssize_t bytes_with_gil_max = 64 << 10;

// Contiguous memory of an object that has the buffer protocol.
class BufferView {
 public:
  explicit BufferView(const nb::object& owner) {
    if (PyObject_GetBuffer(owner.ptr(), &view_, PyBUF_SIMPLE) != 0) throw nb::python_error();
  }
  ~BufferView() { PyBuffer_Release(&view_); }
  BufferView(const BufferView&) = delete;
  BufferView& operator=(const BufferView&) = delete;

  Py_ssize_t size() const { return view_.len; }
  std::span<const std::byte> bytes() const {
    return {static_cast<const std::byte*>(view_.buf), static_cast<std::size_t>(view_.len)};
  }

 private:
  Py_buffer view_;
};

std::uint32_t checksum_object(const nb::object& data, std::uint32_t before) {
  const BufferView view(data);
  if (view.size() <= bytes_with_gil_max) return crc32c(view.bytes(), before);
  const WithoutGil released;
  return crc32c(view.bytes(), before);
}

}  // namespace

void bind_checksum(nb::module_& m) {
  m.def("crc32c", &checksum_object, nb::arg("data"), nb::arg("before") = 0,
        // numpy's stubs declare arrays as buffers from Python 3.12 on only.
        nb::sig("def crc32c(data: typing_extensions.Buffer | numpy.typing.NDArray[typing.Any], "
                "before: int = 0) -> int"),
        "CRC-32C of contiguous bytes.\n\n"
        "before: checksum of the bytes that precede `data`; the result is the checksum of both.");
}

}  // namespace penstock::binding
