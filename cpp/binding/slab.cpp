// Memory that the processes of a host share.
#include "cache/shared_memory.hpp"

#include <nanobind/nanobind.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

#include "binding/arrays.hpp"
#include "binding/gil.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace penstock::binding {
namespace {

Slab::Identity to_identity(const nb::bytes& bytes) {
  Slab::Identity identity;
  if (bytes.size() != identity.size()) throw nb::value_error("an identity has 16 bytes");
  std::copy_n(reinterpret_cast<const std::byte*>(bytes.c_str()), identity.size(),
              identity.begin());
  return identity;
}

// Call without the GIL; a std::system_error becomes OSError with its errno.
template <class Call>
auto call_system(const Call& call) {
  try {
    const WithoutGil released;
    return call();
  } catch (const std::system_error& error) {
    errno = error.code().value();
    PyErr_SetFromErrnoWithFilename(PyExc_OSError, error.what());
    throw nb::python_error();
  }
}

// A slab that lives on after close() while views of its data, or calls on other threads, need it.
struct SlabHandle {
  std::shared_ptr<Slab> slab;

  std::shared_ptr<Slab> get() const {
    if (!slab) throw nb::value_error("it is closed");
    return slab;
  }
};

template <class T>
std::vector<T> fill_column(const Ints& column, const auto& call) {
  std::vector<T> values(column.shape(0));
  const WithoutGil released;
  call(view(column), std::span<T>(values));
  return values;
}

// A column of bool, whose memory a vector cannot lend.
OwnedArray<bool> fill_mask(const Ints& column, const auto& call) {
  const std::size_t count = column.shape(0);
  auto values = std::make_unique<bool[]>(count);
  {
    const WithoutGil released;
    call(view(column), std::span<bool>(values.get(), count));
  }
  bool* data = values.release();
  nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<bool*>(p); });
  return {data, {count}, owner};
}

OwnedArray<std::uint8_t> view_data(const SlabHandle& self) {
  auto slab = self.get();
  const std::span<std::byte> data = slab->data();
  nb::capsule owner(new std::shared_ptr<Slab>(std::move(slab)), [](void* p) noexcept {
    delete static_cast<std::shared_ptr<Slab>*>(p);
  });
  return {reinterpret_cast<std::uint8_t*>(data.data()), {data.size()}, owner};
}

}  // namespace

void bind_slab(nb::module_& m) {
  nb::class_<SlabHandle>(m, "Slab",
                         "Slots in memory that the processes of a host share; each is filled once.")
      .def_static(
          "create",
          [](std::uint64_t slots, std::uint64_t data_bytes, std::uint64_t alignment, bool inside,
             const nb::bytes& identity) {
            const Slab::Shape shape{slots, data_bytes, alignment,
                                    inside ? Slab::Data::inside : Slab::Data::outside};
            const Slab::Identity whose = to_identity(identity);
            return SlabHandle{call_system([&] { return Slab::create(shape, whose); })};
          },
          "slots"_a, "data_bytes"_a, "alignment"_a, "inside"_a, "identity"_a,
          "Create a slab of empty slots; `inside`: the data is part of the shared memory.")
      .def_static(
          "attach",
          [](int pid, int fd, const nb::bytes& identity) {
            const Slab::Identity whose = to_identity(identity);
            return SlabHandle{call_system([&] { return Slab::attach(pid, fd, whose); })};
          },
          "pid"_a, "fd"_a, "identity"_a,
          "Attach the slab that a living process has open as descriptor `fd`.")
      .def("close",
           [](SlabHandle& self) {
             if (self.slab && !self.slab->is_inherited()) self.slab->abandon_all();
             self.slab.reset();
           },
           "Give back all claims, unless this process inherited them; may be called again.")
      .def_prop_ro("is_closed", [](const SlabHandle& self) { return !self.slab; })
      .def_prop_ro("is_inherited", [](const SlabHandle& self) { return self.get()->is_inherited(); },
                   "True in a forked child, which has no claims and cannot claim.")
      .def_prop_ro("fd", [](const SlabHandle& self) { return self.get()->fd(); })
      .def_prop_ro("slots", [](const SlabHandle& self) { return self.get()->shape().slots; })
      .def_prop_ro("is_data_inside",
                   [](const SlabHandle& self) {
                     return self.get()->shape().data == Slab::Data::inside;
                   })
      .def_prop_ro("data", &view_data, nb::rv_policy::automatic)
      .def("counters",
           [](const SlabHandle& self) -> Tuple<std::uint64_t, nb::ellipsis> {
             const Slab::Counters c = self.get()->counters();
             return nb::make_tuple(c.ready, c.allocated_bytes, c.published_bytes, c.taken_over,
                                   c.dropped);
           },
           "(ready slots, allocated bytes, published bytes, claims taken over, slots dropped).")
      .def("claim",
           [](const SlabHandle& self, const Ints& slots) {
             const auto slab = self.get();
             return make_array<std::uint8_t>(fill_column<Slab::Claim>(
                 slots, [&](auto in, auto out) { slab->claim(in, out); }));
           },
           "slots"_a.noconvert(),
           "Claim slots: 0 if ready, 1 if claimed by this call, 2 if another claim stands.")
      .def("find_offsets",
           [](const SlabHandle& self, const Ints& slots) {
             const auto slab = self.get();
             return make_array<std::int64_t>(fill_column<std::int64_t>(
                 slots, [&](auto in, auto out) { slab->find_offsets(in, out); }));
           },
           "slots"_a.noconvert(),
           "Offsets of ready slots; -1 for others.")
      .def("allocate",
           [](const SlabHandle& self, const Ints& lengths) {
             const auto slab = self.get();
             return make_array<std::int64_t>(fill_column<std::int64_t>(
                 lengths, [&](auto in, auto out) { slab->allocate(in, out); }));
           },
           "lengths"_a.noconvert(),
           "Offsets of room for so many bytes each; -1 if there is no more.")
      .def("has_claims",
           [](const SlabHandle& self, const Ints& slots) {
             const auto slab = self.get();
             return fill_mask(slots, [&](auto in, auto out) { slab->has_claims(in, out); });
           },
           "slots"_a.noconvert(),
           "True for slots that are claimed through this object.")
      .def("publish",
           [](const SlabHandle& self, const Ints& slots, const Ints& at, const Ints& lengths) {
             const auto slab = self.get();
             return fill_mask(slots, [&](auto in, auto out) {
               slab->publish(in, view(at), view(lengths), out);
             });
           },
           "slots"_a.noconvert(), "at"_a.noconvert(), "lengths"_a.noconvert(),
           "Make slots ready at these offsets; False if the claim was not held here.")
      .def("abandon",
           [](const SlabHandle& self, const Ints& slots) {
             const auto slab = self.get();
             const WithoutGil released;
             slab->abandon(view(slots));
           },
           "slots"_a.noconvert(),
           "Give claims back; slots that are not claimed here are ignored.")
      .def("drop",
           [](const SlabHandle& self, const Ints& slots, const Ints& at) {
             const auto slab = self.get();
             const WithoutGil released;
             slab->drop(view(slots), view(at));
           },
           "slots"_a.noconvert(), "at"_a.noconvert(),
           "Make slots empty whose bytes were found damaged at these offsets.")
      // Never a converted copy: the bytes would go to it.
      .def("gather",
           [](const SlabHandle& self, const Ints& at, const Ints& lengths, const Ints& targets,
              const WritableColumn<std::uint8_t>& out) {
             const auto slab = self.get();
             const WithoutGil released;
             slab->gather(view(at), view(lengths), view(targets),
                          view_bytes(out));
           },
           "at"_a.noconvert(), "lengths"_a.noconvert(), "targets"_a.noconvert(),
           "out"_a.noconvert(),
           "Copy `lengths[i]` bytes from `data[at[i]:]` to `out[targets[i]:]`, for each i.")
      .def("populate",
           [](const SlabHandle& self) {
             const auto slab = self.get();
             call_system([&] { slab->populate(); });
           },
           "Take all memory from the system now.");
}

}  // namespace penstock::binding
