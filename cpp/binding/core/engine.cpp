// Engine, arena and facts about storage: conversion only.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "engine/arena.hpp"
#include "engine/engine.hpp"
#include "binding/gil.hpp"
#include "engine/requests.hpp"
#include "engine/storage.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace penstock::binding {
namespace {

template <class T>
using Column = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class T>
std::span<const T> view(const Column<T>& column) {
  return {column.data(), column.shape(0)};
}

Access access(bool direct) { return direct ? Access::direct : Access::buffered; }

// Names of files may be no text: Python hands them over as bytes.
std::string path_of(const nb::bytes& path) { return {path.c_str(), path.size()}; }

// Owns the engine and holds the arrays it looks into, and those it writes to until their ticket is
// reported: here and not in Python, where a signal may strike between two steps.
class EngineHandle {
  using Held = std::map<std::uint64_t, std::vector<Bytes>>;

 public:
  EngineHandle(const nb::bytes& root, Column<std::uint8_t> names, Column<std::int64_t> ends,
               Column<std::int64_t> size, Column<std::int64_t> mtime_ns, std::size_t keep_max,
               int backend, bool direct, std::size_t threads)
      : names_(std::move(names)),
        ends_(std::move(ends)),
        size_(std::move(size)),
        mtime_ns_(std::move(mtime_ns)),
        engine_(std::make_unique<Engine>(
            FileColumns{path_of(root),
                        {reinterpret_cast<const char*>(names_.data()), names_.shape(0)},
                        view(ends_),
                        view(size_),
                        view(mtime_ns_)},
            keep_max, static_cast<Backend>(backend), access(direct), threads)) {}

  ~EngineHandle() {
    // In a forked child the threads are gone and the locks undefined: let it be.
    if (engine_->inherited()) {
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
                       const std::vector<Bytes>& buffers, std::int64_t patience_ns) {
    std::vector<std::span<std::byte>> places;
    places.reserve(buffers.size());
    for (const Bytes& bytes : buffers) {
      places.emplace_back(reinterpret_cast<std::byte*>(bytes.data()), bytes.shape(0));
    }
    const RequestColumns columns{view(file),   view(offset), view(length),
                                 view(buffer), view(target), view(runs)};
    Placed placed = place(columns, places, engine_->file_count());
    Held one;  // allocated before the engine writes: what follows cannot fail
    auto node = (one.emplace(0, buffers), one.extract(0));
    node.key() = engine_->submit(std::move(placed.extents), std::move(placed.runs),
                                 std::chrono::nanoseconds(patience_ns));
    const std::uint64_t ticket = node.key();
    held_.insert(std::move(node));
    return ticket;
  }

  void close() {
    {
      const WithoutGil released;
      engine_->close();
    }
    held_.clear();
  }

  nb::list poll(std::int64_t timeout_ns) {
    std::vector<Done> done;
    {
      const WithoutGil released;
      done = engine_->poll(std::chrono::nanoseconds(timeout_ns));
    }
    nb::list result;
    for (const Done& ticket : done) {
      nb::list failures;
      for (const Failure& f : ticket.failures) {
        failures.append(nb::make_tuple(f.extent, f.error, f.got));
      }
      held_.erase(ticket.id);
      result.append(nb::make_tuple(ticket.id, failures));
    }
    return result;
  }

 private:
  Column<std::uint8_t> names_;
  Column<std::int64_t> ends_;
  Column<std::int64_t> size_;
  Column<std::int64_t> mtime_ns_;
  Held held_;  // by ticket; guarded by the GIL
  std::unique_ptr<Engine> engine_;
};

nb::ndarray<nb::numpy, std::uint8_t> take(const std::shared_ptr<Arena>& arena, std::size_t bytes) {
  std::unique_ptr<Block> block;
  {
    const WithoutGil released;
    block = std::make_unique<Block>(arena->take(bytes));
  }
  auto* data = reinterpret_cast<std::uint8_t*>(block->data());
  nb::capsule owner(block.release(), [](void* p) noexcept { delete static_cast<Block*>(p); });
  return {data, {bytes}, owner};
}

// The arena outlives this object for as long as blocks are out.
struct ArenaHandle {
  std::shared_ptr<Arena> arena;
};

}  // namespace

void bind_engine(nb::module_& m) {
  nb::class_<EngineHandle>(m, "Engine")
      .def(nb::init<const nb::bytes&, Column<std::uint8_t>, Column<std::int64_t>,
                    Column<std::int64_t>, Column<std::int64_t>, std::size_t, int, bool, std::size_t>(),
           "root"_a, "names"_a, "ends"_a, "size"_a, "mtime_ns"_a, "keep_max"_a, "backend"_a,
           "direct"_a, "threads"_a)
      // Never a converted copy: the bytes would go to it.
      .def("submit", &EngineHandle::submit, "file"_a.noconvert(), "offset"_a.noconvert(),
           "length"_a.noconvert(), "buffer"_a.noconvert(), "target"_a.noconvert(),
           "runs"_a.noconvert(), "buffers"_a.noconvert(), "patience_ns"_a)
      .def("poll", &EngineHandle::poll, "timeout_ns"_a)
      .def("close", &EngineHandle::close)
      .def("resize", [](EngineHandle& self, std::size_t threads) { (*self).resize(threads); },
           "threads"_a)
      .def("throttle", [](EngineHandle& self, double rate) { (*self).throttle(rate); },
           "bytes_per_s"_a)
      .def("use", [](EngineHandle& self, int backend, bool direct) {
             (*self).use(static_cast<Backend>(backend), access(direct));
           },
           "backend"_a, "direct"_a)
      .def("counters",
           [](EngineHandle& self) {
             const Counters c = (*self).counters();
             return nb::make_tuple(c.bytes, c.runs, c.extents, c.tickets, c.opens, c.open_ns,
                                   c.work_ns, c.busy_ns);
           })
      .def_prop_ro("closed", [](EngineHandle& self) { return (*self).closed(); })
      .def_prop_ro("inherited", [](EngineHandle& self) { return (*self).inherited(); });

  nb::class_<ArenaHandle>(m, "Arena")
      .def("__init__",
           [](ArenaHandle* self, std::size_t kept_bytes_max) {
             new (self) ArenaHandle{std::make_shared<Arena>(kept_bytes_max)};
           },
           "kept_bytes_max"_a)
      .def("take", [](ArenaHandle& self, std::size_t bytes) { return take(self.arena, bytes); },
           "bytes"_a)
      .def_prop_ro("kept_bytes", [](ArenaHandle& self) { return self.arena->kept_bytes(); })
      .def_prop_ro("lent_bytes", [](ArenaHandle& self) { return self.arena->lent_bytes(); });

  m.def("io_uring_refusal", &io_uring_refusal);
  m.def("file_system", [](const nb::bytes& path) { return file_system(path_of(path)); }, "path"_a);
  m.def("direct_refusal", [](const nb::bytes& path) { return direct_refusal(path_of(path)); },
        "path"_a);
  m.def("resident_fraction", [](const nb::bytes& path) { return resident_fraction(path_of(path)); },
        "path"_a);
}

}  // namespace penstock::binding
