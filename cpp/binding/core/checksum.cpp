// The checksum of containers that are written.
#include <nanobind/nanobind.h>

#include "ground/crc32c.hpp"
#include "binding/gil.hpp"

namespace nb = nanobind;

namespace penstock::binding {
namespace {

constexpr Py_ssize_t bytes_with_gil_max = 64 << 10;

// Bytes, or anything else that lends its contiguous memory.
class Lent {
 public:
  explicit Lent(const nb::object& owner) {
    if (PyObject_GetBuffer(owner.ptr(), &view_, PyBUF_SIMPLE) != 0) throw nb::python_error();
  }
  ~Lent() { PyBuffer_Release(&view_); }
  Lent(const Lent&) = delete;
  Lent& operator=(const Lent&) = delete;

  Py_ssize_t size() const { return view_.len; }
  std::span<const std::byte> bytes() const {
    return {static_cast<const std::byte*>(view_.buf), static_cast<std::size_t>(view_.len)};
  }

 private:
  Py_buffer view_;
};

std::uint32_t of(const nb::object& data, std::uint32_t before) {
  const Lent lent(data);
  if (lent.size() <= bytes_with_gil_max) return crc32c(lent.bytes(), before);
  const WithoutGil released;
  return crc32c(lent.bytes(), before);
}

}  // namespace

void bind_checksum(nb::module_& m) {
  m.def("crc32c", &of, nb::arg("data"), nb::arg("before") = 0,
        "CRC-32C of bytes, or of what came before and these, given the checksum of the former.");
}

}  // namespace penstock::binding
