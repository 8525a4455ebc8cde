// The module `penstock_bench._replay`: the replay of traces.
#include "replay/replay.hpp"

#include <nanobind/nanobind.h>

#include <utility>

#include "binding/arrays.hpp"
#include "binding/gil.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace penstock::binding {
namespace {

using Results = WritableColumn<std::int64_t>;

// A replay with the arrays of names that it reads.
class ReplayHandle {
 public:
  ReplayHandle(Column<std::uint8_t> names, Ints ends, std::size_t keep_max)
      : names_(std::move(names)),
        ends_(std::move(ends)),
        replay_(view_text(names_), view(ends_), keep_max) {}

  Tuple<std::size_t, std::int64_t> perform(const Column<std::uint8_t>& kind,
                                           const Column<std::uint32_t>& file, const Ints& offset, const Ints& length, const Ints& think_ns, bool paced,
                    std::int64_t due_ns, const Results& result, const Results& late_ns,
                    const Results& duration_ns) {
    const OperationColumns acts{view(kind), view(file), view(offset), view(length), view(think_ns)};
    const OperationResults results{view(result), view(late_ns), view(duration_ns)};
    std::size_t done = 0;
    {
      const WithoutGil released;
      done = replay_.perform(acts, paced, due_ns, results);
    }
    return nb::make_tuple(done, due_ns);
  }

  Replay& operator*() { return replay_; }

 private:
  Column<std::uint8_t> names_;
  Ints ends_;
  Replay replay_;
};

}  // namespace
}  // namespace penstock::binding

NB_MODULE(_replay, m) {
  using namespace penstock::binding;
  m.doc() = "The replay of traces, in C++.";
  nanobind::set_leak_warnings(false);  // a replay may be alive when the interpreter ends
  nb::class_<ReplayHandle>(m, "Replay", "The files of a recorded job, as its threads have them open.")
      .def(nb::init<Column<std::uint8_t>, Ints, std::size_t>(), "names"_a, "ends"_a,
           "keep_max"_a)
      .def("perform", &ReplayHandle::perform, "kind"_a.noconvert(), "file"_a.noconvert(),
           "offset"_a.noconvert(), "length"_a.noconvert(), "think_ns"_a.noconvert(), "paced"_a,
           "due_ns"_a, "result"_a.noconvert(), "late_ns"_a.noconvert(), "duration_ns"_a.noconvert(),
           "Perform the operations of one thread in order: (number performed, time at which the last\n"
           "one was due to end). Fewer are performed only after `stop`.")
      .def("stop", [](ReplayHandle& self) { (*self).stop(); },
           "End the calls of `perform` on all threads after the operation under way.")
      .def_prop_ro("unrecorded_opens",
                   [](ReplayHandle& self) { return (*self).unrecorded_opens(); },
                   "Files that were opened although no operation of the trace opens them.");
}
