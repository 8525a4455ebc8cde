// The engine, its memory, and probes of storage.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "engine/arena.hpp"
#include "engine/block_moves.hpp"
#include "engine/engine.hpp"
#include "binding/arrays.hpp"
#include "binding/gil.hpp"
#include "engine/requests.hpp"
#include "engine/storage.hpp"
#include "ground/limits.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace penstock::binding {
namespace {

using Bytes = WritableColumn<std::uint8_t>;
using Failures = List<Tuple<std::size_t, int, std::int64_t>>;
using CompletionList = List<Tuple<std::uint64_t, Failures>>;
using CounterTuple = Tuple<std::uint64_t, nb::ellipsis>;

Access choose_access(bool direct) { return direct ? Access::direct : Access::buffered; }

// File names need not be valid text, so Python passes bytes.
std::string to_path(const nb::bytes& path) { return {path.c_str(), path.size()}; }

// An engine with the arrays that it reads, and those that it writes to until their ticket is
// reported. They are kept here, because in Python a signal may arrive between two steps.
class EngineHandle {
  using BuffersByTicket = std::map<std::uint64_t, std::vector<Bytes>>;

 public:
  EngineHandle(const nb::bytes& root, Column<std::uint8_t> names, Column<std::int64_t> ends,
               Column<std::int64_t> size, Column<std::int64_t> mtime_ns, std::size_t keep_max,
               int backend, bool direct, std::size_t threads)
      : names_(std::move(names)),
        ends_(std::move(ends)),
        size_(std::move(size)),
        mtime_ns_(std::move(mtime_ns)),
        engine_(std::make_unique<Engine>(
            FileColumns{to_path(root), view_text(names_), view(ends_), view(size_),
                        view(mtime_ns_)},
            keep_max, static_cast<Backend>(backend), choose_access(direct), threads)) {}

  ~EngineHandle() {
    // In a forked child the threads are gone and the locks undefined, so the engine is leaked.
    if (engine_->is_inherited()) {
      (void)engine_.release();
      return;
    }
    const WithoutGil released;
    engine_.reset();
  }

  Engine& operator*() { return *engine_; }

  std::uint64_t submit(const Column<std::uint32_t>& file, const Column<std::int64_t>& offset,
                       const Column<std::int64_t>& length, const Column<std::uint32_t>& buffer,
                       const Column<std::int64_t>& target, const Column<std::int64_t>& runs,
                       const std::vector<Bytes>& buffers, std::int64_t patience_ns,
                       const WritableColumn<std::int64_t>& tally) {
    std::vector<std::span<std::byte>> places;
    places.reserve(buffers.size());
    for (const Bytes& bytes : buffers) places.push_back(view_bytes(bytes));
    const RequestColumns columns{view(file),   view(offset), view(length),
                                 view(buffer), view(target), view(runs)};
    PlacedRequests placed = place_requests(columns, places, engine_->file_count());
    std::int64_t asked = 0;
    for (const Extent& extent : placed.extents) asked += extent.length;
    // The node is allocated before the engine writes, so that nothing below can fail.
    BuffersByTicket single;
    auto node = (single.emplace(0, buffers), single.extract(0));
    node.key() = engine_->submit(std::move(placed.extents), std::move(placed.runs),
                                 std::chrono::nanoseconds(patience_ns));
    const std::uint64_t ticket = node.key();
    if (tally.size() > 0) tally.data()[0] += asked;  // guarded by the GIL
    buffers_.insert(std::move(node));
    return ticket;
  }

  void close() {
    {
      const WithoutGil released;
      engine_->close();
    }
    buffers_.clear();
  }

  CompletionList poll(std::int64_t timeout_ns) {
    std::vector<Completion> completions;
    {
      const WithoutGil released;
      completions = engine_->poll(std::chrono::nanoseconds(timeout_ns));
    }
    nb::list result;
    for (const Completion& completion : completions) {
      nb::list failures;
      for (const Failure& f : completion.failures) {
        failures.append(nb::make_tuple(f.extent, f.error, f.got));
      }
      buffers_.erase(completion.id);
      result.append(nb::make_tuple(completion.id, failures));
    }
    return result;
  }

 private:
  Column<std::uint8_t> names_;
  Column<std::int64_t> ends_;
  Column<std::int64_t> size_;
  Column<std::int64_t> mtime_ns_;
  BuffersByTicket buffers_;  // guarded by the GIL
  std::unique_ptr<Engine> engine_;
};

OwnedArray<std::uint8_t> take(const std::shared_ptr<Arena>& arena, std::size_t bytes) {
  std::unique_ptr<Block> block;
  {
    const WithoutGil released;
    block = std::make_unique<Block>(arena->take(bytes));
  }
  auto* data = reinterpret_cast<std::uint8_t*>(block->data());
  nb::capsule owner(block.release(), [](void* p) noexcept { delete static_cast<Block*>(p); });
  return {data, {bytes}, owner};
}

List<std::int64_t> move(int file, bool writes, const std::vector<std::int64_t>& offsets,
                        const std::vector<Bytes>& memory) {
  if (offsets.size() != memory.size()) throw nb::value_error("an offset for each block");
  std::vector<BlockMove> blocks(offsets.size());
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    blocks[i].offset = offsets[i];
    blocks[i].memory = view_bytes(memory[i]);
    if (blocks[i].memory.size() > limits::block_bytes_max) {
      throw nb::value_error("a block is too long");
    }
  }
  {
    const WithoutGil released;
    move_blocks(file, writes, blocks);
  }
  nb::list moved;
  for (const BlockMove& block : blocks) {
    moved.append(block.error != 0 ? -static_cast<std::int64_t>(block.error) : block.done);
  }
  return moved;
}

// An arena, which outlives this object while its blocks are lent.
struct ArenaHandle {
  std::shared_ptr<Arena> arena;
};

}  // namespace

void bind_engine(nb::module_& m) {
  nb::class_<EngineHandle>(m, "Engine",
                           "Threads that read extents of files into buffers.\n\n"
                           "`backend` is 0 for pread, 1 for io_uring, 2 for mmap.")
      .def(nb::init<const nb::bytes&, Column<std::uint8_t>, Ints, Ints, Ints, std::size_t, int,
                    bool, std::size_t>(),
           "root"_a, "names"_a, "ends"_a, "size"_a, "mtime_ns"_a, "keep_max"_a, "backend"_a,
           "direct"_a, "threads"_a)
      // Never a converted copy: the bytes would go to it.
      .def("submit", &EngineHandle::submit, "file"_a.noconvert(), "offset"_a.noconvert(),
           "length"_a.noconvert(), "buffer"_a.noconvert(), "target"_a.noconvert(),
           "runs"_a.noconvert(), "buffers"_a.noconvert(), "patience_ns"_a, "tally"_a.noconvert(),
           "Queue requests and return their ticket; see `penstock.extent.Requests`. Their bytes are\n"
           "added to `tally[0]`.\n\n"
           "ValueError names the first column and row that is invalid.")
      .def("poll", &EngineHandle::poll, "timeout_ns"_a,
           "Wait for completions: (ticket, failures); a failure is (extent, errno, bytes read).\n\n"
           "Returns at once if nothing is outstanding, or if the engine is closed.")
      .def("close", &EngineHandle::close,
           "Drop queued requests, wait for those under way, and join the threads.")
      .def("set_threads",
           [](EngineHandle& self, std::size_t threads) { (*self).set_threads(threads); },
           "threads"_a, "Change the number of threads; takes effect within one chunk.")
      .def("throttle", [](EngineHandle& self, double rate) { (*self).throttle(rate); },
           "bytes_per_s"_a, "Limit the rate of reading; 0 removes the limit.")
      .def("set_backend", [](EngineHandle& self, int backend, bool direct) {
             (*self).set_backend(static_cast<Backend>(backend), choose_access(direct));
           },
           "backend"_a, "direct"_a, "Change how chunks are read that no thread has begun.")
      .def("counters",
           [](EngineHandle& self) -> CounterTuple {
             const Counters c = (*self).counters();
             return nb::make_tuple(c.bytes, c.runs, c.extents, c.tickets, c.opens, c.open_ns,
                                   c.work_ns, c.busy_ns);
           },
           "Totals: (bytes, runs, extents, tickets, opens, open_ns, work_ns, busy_ns).")
      .def_prop_ro("is_closed", [](EngineHandle& self) { return (*self).is_closed(); })
      .def_prop_ro("is_inherited", [](EngineHandle& self) { return (*self).is_inherited(); },
                   "True in a forked child, where the engine has no threads and must not be used.");

  nb::class_<ArenaHandle>(m, "Arena", "Recycled, touched, page-aligned memory for batches.")
      .def("__init__",
           [](ArenaHandle* self, std::size_t bytes_max) {
             new (self) ArenaHandle{std::make_shared<Arena>(bytes_max)};
           },
           "bytes_max"_a)
      .def("take", [](ArenaHandle& self, std::size_t bytes) { return take(self.arena, bytes); },
           "bytes"_a,
           "Lend an array that returns its memory when the last view of it is gone.")
      .def("prepare",
           [](ArenaHandle& self, std::size_t bytes, std::size_t blocks) {
             const WithoutGil released;
             return self.arena->prepare(bytes, blocks);
           },
           "bytes"_a, "blocks"_a,
           "Touch memory for so many blocks, as the bound has room; return for how many.")
      .def("hand_over",
           [](ArenaHandle& self, const Bytes& block) {
             self.arena->hand_over(view_bytes(block).data());
           },
           "block"_a.noconvert(), "Count an array that was lent as the user's from now on.")
      .def("has_room",
           [](ArenaHandle& self, const std::vector<std::size_t>& blocks, std::int64_t reserved) {
             return self.arena->has_room(blocks, reserved);
           },
           "blocks"_a, "reserved_bytes"_a,
           "True if blocks of these sizes, and so many bytes, fit the bound besides `ahead_bytes`.")
      .def_prop_rw("bytes_max", [](ArenaHandle& self) { return self.arena->bytes_max(); },
                   [](ArenaHandle& self, std::size_t bytes) { self.arena->set_bytes_max(bytes); },
                   "Bound of what is kept, lent or not; what is kept above it is freed at once.")
      .def_prop_ro("ahead_bytes", [](ArenaHandle& self) { return self.arena->ahead_bytes(); },
                   "Bytes of memory in arrays that are alive and not the user's.")
      .def_prop_ro("kept_bytes", [](ArenaHandle& self) { return self.arena->kept_bytes(); },
                   "Bytes of memory that waits to be lent again.")
      .def_prop_ro("lent_bytes", [](ArenaHandle& self) { return self.arena->lent_bytes(); },
                   "Bytes of memory in arrays that are alive.");

  m.def("move_blocks", &move, "file"_a, "writes"_a, "offsets"_a, "blocks"_a,
        "Read or write blocks of an open file, many at a time. Returns for each the bytes that moved,\n"
        "or -errno.");
  m.def("probe_io_uring", &probe_io_uring,
        "errno of creating an io_uring; 0 if the kernel grants one.");
  m.def("get_file_system", [](const nb::bytes& path) { return get_file_system(to_path(path)); },
        "path"_a, "Name of the file system of a path, or its number in hexadecimal.");
  m.def("probe_direct_io", [](const nb::bytes& path) { return probe_direct_io(to_path(path)); },
        "path"_a, "errno of reading a file by O_DIRECT; 0 if that works or the file cannot be opened.");
  m.def("measure_residency", [](const nb::bytes& path) { return measure_residency(to_path(path)); },
        "path"_a, "Part of a file that is in the page cache, 0 to 1; -1 if the kernel does not tell.");
}

}  // namespace penstock::binding
