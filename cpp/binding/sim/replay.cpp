// Replay: conversion only.
#include "sim/replay.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <utility>

#include "binding/gil.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace penstock::binding {
namespace {

template <class T>
using Column = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class T>
std::span<T> view(const Column<T>& column) {
  return {column.data(), column.shape(0)};
}

using Ints = Column<const std::int64_t>;
using Results = Column<std::int64_t>;

// Holds the names that the replay looks into.
class ReplayHandle {
 public:
  ReplayHandle(Column<const std::uint8_t> names, Ints ends, std::size_t keep_max)
      : names_(std::move(names)),
        ends_(std::move(ends)),
        replay_({reinterpret_cast<const char*>(names_.data()), names_.shape(0)}, view(ends_),
                keep_max) {}

  nb::tuple perform(const Column<const std::uint8_t>& kind, const Column<const std::uint32_t>& file,
                    const Ints& offset, const Ints& length, const Ints& think_ns, bool paced,
                    std::int64_t due_ns, const Results& result, const Results& late_ns,
                    const Results& duration_ns) {
    const ActColumns acts{view(kind), view(file), view(offset), view(length), view(think_ns)};
    const ActResults results{view(result), view(late_ns), view(duration_ns)};
    std::size_t done = 0;
    {
      const WithoutGil released;
      done = replay_.perform(acts, paced, due_ns, results);
    }
    return nb::make_tuple(done, due_ns);
  }

  Replay& operator*() { return replay_; }

 private:
  Column<const std::uint8_t> names_;
  Ints ends_;
  Replay replay_;
};

}  // namespace

void bind_replay(nb::module_& m) {
  nb::class_<ReplayHandle>(m, "Replay")
      .def(nb::init<Column<const std::uint8_t>, Ints, std::size_t>(), "names"_a, "ends"_a,
           "keep_max"_a)
      .def("perform", &ReplayHandle::perform, "kind"_a.noconvert(), "file"_a.noconvert(),
           "offset"_a.noconvert(), "length"_a.noconvert(), "think_ns"_a.noconvert(), "paced"_a,
           "due_ns"_a, "result"_a.noconvert(), "late_ns"_a.noconvert(), "duration_ns"_a.noconvert())
      .def("stop", [](ReplayHandle& self) { (*self).stop(); })
      .def_prop_ro("untold_opens", [](ReplayHandle& self) { return (*self).untold_opens(); });
}

}  // namespace penstock::binding
