// The slab: conversion only.
#include "cache/slab.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

#include "binding/columns.hpp"
#include "ground/gather.hpp"
#include "binding/gil.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace penstock::binding {
namespace {

using Ints = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Source = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::span<const std::int64_t> view(const Ints& column) {
  return {column.data(), column.shape(0)};
}

Slab::Identity identity_of(const nb::bytes& bytes) {
  Slab::Identity identity;
  if (bytes.size() != identity.size()) throw nb::value_error("an identity has 16 bytes");
  std::copy_n(reinterpret_cast<const std::byte*>(bytes.c_str()), identity.size(),
              identity.begin());
  return identity;
}

// OSError, with its number, where the system refused.
template <class Call>
auto asked(const Call& call) {
  try {
    const WithoutGil released;
    return call();
  } catch (const std::system_error& error) {
    errno = error.code().value();
    PyErr_SetFromErrnoWithFilename(PyExc_OSError, error.what());
    throw nb::python_error();
  }
}

// Views of the data, and calls on other threads, keep a slab alive that is closed meanwhile.
struct SlabHandle {
  std::shared_ptr<Slab> slab;

  std::shared_ptr<Slab> held() const {
    if (!slab) throw nb::value_error("it is closed");
    return slab;
  }
};

template <class T>
std::vector<T> filled(const Ints& column, const auto& call) {
  std::vector<T> found(column.shape(0));
  const WithoutGil released;
  call(view(column), std::span<T>(found));
  return found;
}

// A column of truths, which a vector cannot lend.
nb::object mask(const Ints& column, const auto& call) {
  const std::size_t count = column.shape(0);
  auto found = std::make_unique<bool[]>(count);
  {
    const WithoutGil released;
    call(view(column), std::span<bool>(found.get(), count));
  }
  bool* data = found.release();
  nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<bool*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, bool, nb::ndim<1>>(data, {count}, owner));
}

nb::ndarray<nb::numpy, std::uint8_t> data_of(const SlabHandle& self) {
  auto held = self.held();
  const std::span<std::byte> data = held->data();
  nb::capsule owner(new std::shared_ptr<Slab>(std::move(held)), [](void* p) noexcept {
    delete static_cast<std::shared_ptr<Slab>*>(p);
  });
  return {reinterpret_cast<std::uint8_t*>(data.data()), {data.size()}, owner};
}

}  // namespace

void bind_slab(nb::module_& m) {
  nb::class_<SlabHandle>(m, "Slab")
      .def_static(
          "create",
          [](std::uint64_t slots, std::uint64_t data_bytes, std::uint64_t alignment, bool inside,
             const nb::bytes& identity) {
            const Slab::Shape shape{slots, data_bytes, alignment,
                                    inside ? Slab::Data::inside : Slab::Data::outside};
            const Slab::Identity whose = identity_of(identity);
            return SlabHandle{asked([&] { return Slab::create(shape, whose); })};
          },
          "slots"_a, "data_bytes"_a, "alignment"_a, "inside"_a, "identity"_a)
      .def_static(
          "attach",
          [](int pid, int fd, const nb::bytes& identity) {
            const Slab::Identity whose = identity_of(identity);
            return SlabHandle{asked([&] { return Slab::attach(pid, fd, whose); })};
          },
          "pid"_a, "fd"_a, "identity"_a)
      .def("close",
           [](SlabHandle& self) {
             if (self.slab && !self.slab->inherited()) self.slab->abandon_all();
             self.slab.reset();
           })
      .def_prop_ro("closed", [](const SlabHandle& self) { return !self.slab; })
      .def_prop_ro("inherited", [](const SlabHandle& self) { return self.held()->inherited(); })
      .def_prop_ro("fd", [](const SlabHandle& self) { return self.held()->fd(); })
      .def_prop_ro("slots", [](const SlabHandle& self) { return self.held()->shape().slots; })
      .def_prop_ro("inside",
                   [](const SlabHandle& self) {
                     return self.held()->shape().data == Slab::Data::inside;
                   })
      .def_prop_ro("data", &data_of, nb::rv_policy::automatic)
      .def("counters",
           [](const SlabHandle& self) {
             const Slab::Counters c = self.held()->counters();
             return nb::make_tuple(c.ready, c.allocated_bytes, c.published_bytes, c.taken_over,
                                   c.dropped);
           })
      .def("claim",
           [](const SlabHandle& self, const Ints& slots) {
             const auto slab = self.held();
             return array<std::uint8_t>(filled<Slab::Claim>(
                 slots, [&](auto in, auto out) { slab->claim(in, out); }));
           },
           "slots"_a.noconvert())
      .def("offsets",
           [](const SlabHandle& self, const Ints& slots) {
             const auto slab = self.held();
             return array<std::int64_t>(filled<std::int64_t>(
                 slots, [&](auto in, auto out) { slab->offsets(in, out); }));
           },
           "slots"_a.noconvert())
      .def("allocate",
           [](const SlabHandle& self, const Ints& lengths) {
             const auto slab = self.held();
             return array<std::int64_t>(filled<std::int64_t>(
                 lengths, [&](auto in, auto out) { slab->allocate(in, out); }));
           },
           "lengths"_a.noconvert())
      .def("holds",
           [](const SlabHandle& self, const Ints& slots) {
             const auto slab = self.held();
             return mask(slots, [&](auto in, auto out) { slab->holds(in, out); });
           },
           "slots"_a.noconvert())
      .def("publish",
           [](const SlabHandle& self, const Ints& slots, const Ints& at, const Ints& lengths) {
             const auto slab = self.held();
             return mask(slots, [&](auto in, auto out) {
               slab->publish(in, view(at), view(lengths), out);
             });
           },
           "slots"_a.noconvert(), "at"_a.noconvert(), "lengths"_a.noconvert())
      .def("abandon",
           [](const SlabHandle& self, const Ints& slots) {
             const auto slab = self.held();
             const WithoutGil released;
             slab->abandon(view(slots));
           },
           "slots"_a.noconvert())
      .def("drop",
           [](const SlabHandle& self, const Ints& slots, const Ints& at) {
             const auto slab = self.held();
             const WithoutGil released;
             slab->drop(view(slots), view(at));
           },
           "slots"_a.noconvert(), "at"_a.noconvert())
      // Never a converted copy: the bytes would go to it.
      .def("gather",
           [](const SlabHandle& self, const Ints& at, const Ints& lengths, const Ints& targets,
              const Bytes& out) {
             const auto slab = self.held();
             const WithoutGil released;
             slab->gather(view(at), view(lengths), view(targets),
                          {reinterpret_cast<std::byte*>(out.data()), out.shape(0)});
           },
           "at"_a.noconvert(), "lengths"_a.noconvert(), "targets"_a.noconvert(),
           "out"_a.noconvert())
      .def("populate", [](const SlabHandle& self) {
        const auto slab = self.held();
        asked([&] { slab->populate(); });
      });

  m.def("fence", &fence);
  m.def("gather",
        [](const Source& source, const Ints& at, const Ints& lengths, const Ints& targets,
           const Bytes& out) {
          const WithoutGil released;
          gather({reinterpret_cast<const std::byte*>(source.data()), source.shape(0)}, view(at),
                 view(lengths), view(targets),
                 {reinterpret_cast<std::byte*>(out.data()), out.shape(0)});
        },
        "source"_a.noconvert(), "at"_a.noconvert(), "lengths"_a.noconvert(),
        "targets"_a.noconvert(), "out"_a.noconvert());
}

}  // namespace penstock::binding
