// FFmpeg's decoders on packets, without the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>

#include "binding/arrays.hpp"
#include "binding/gil.hpp"
#include "codecs/decoder_pool.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace penstock::binding {
namespace {

using codecs::DecoderKind;
using codecs::DecoderPool;
using Bytes = Column<std::uint8_t>;
using Rgb = nb::ndarray<std::uint8_t, nb::shape<-1, -1, -1, 3>, nb::device::cpu>;
using Kind = std::tuple<std::string, nb::bytes, std::vector<std::pair<std::string, std::string>>>;

DecoderKind make_kind(const Kind& given) {
  const auto& [name, config, options] = given;
  return {name, {config.c_str(), config.size()}, options};
}

codecs::Pictures make_pictures(const Rgb& frames) {
  return {{frames.data(),
           {frames.stride(1), frames.stride(2), frames.stride(3)},
           static_cast<int>(frames.shape(1)),
           static_cast<int>(frames.shape(2))},
          frames.stride(0),
          static_cast<std::int64_t>(frames.shape(0))};
}

std::optional<DecoderPool::Problem> decode_pictures(
    DecoderPool& pool, const Bytes& data, const Ints& bounds, const Ints& packet_bounds,
    const Ints& sizes, const Ints& rows, const Ints& kinds, const Ints& turns,
    const Ints& wanted_bounds, const Ints& wanted, const Ints& places,
    const std::vector<Kind>& given_kinds, const std::vector<Rgb>& memory, bool is_scaled,
    std::size_t threads) {
  std::vector<DecoderKind> known;
  for (const Kind& kind : given_kinds) known.push_back(make_kind(kind));
  std::vector<codecs::Pictures> pictures;
  for (const Rgb& frames : memory) pictures.push_back(make_pictures(frames));
  const WithoutGil released;
  return pool.decode_pictures({view_bytes(data), view(bounds), view(packet_bounds), view(sizes),
                               view(rows), view(kinds), view(turns), view(wanted_bounds),
                               view(wanted), view(places)},
                              known, pictures, is_scaled, threads);
}

void decode_samples(DecoderPool& pool, const Kind& kind, const Bytes& data, const Ints& sizes,
                    const std::string& packing, std::int64_t first,
                    const nb::ndarray<nb::ndim<2>, nb::c_contig, nb::device::cpu>& out) {
  constexpr char kinds[] = "iuf";  // as DLPack numbers them
  const codecs::Samples samples{static_cast<std::byte*>(out.data()), out.shape(0), out.shape(1),
                                out.itemsize(),
                                out.dtype().code < 3 ? kinds[out.dtype().code] : ' '};
  const auto way = packing == "primed"  ? codecs::Packing::primed
                   : packing == "pages" ? codecs::Packing::pages
                                        : codecs::Packing::none;
  const DecoderKind known = make_kind(kind);
  std::string problem;
  {
    const WithoutGil released;
    problem = pool.decode_samples(known, {view_bytes(data), view(sizes), {}}, way, first, samples);
  }
  if (!problem.empty()) throw nb::value_error(problem.c_str());
}

}  // namespace

void bind_codecs(nb::module_& m) {
  nb::class_<DecoderPool>(m, "DecoderPool",
                          "FFmpeg's decoders, and those that wait for work: opening one takes "
                          "longer than decoding a short chunk. Thread-safe.")
      .def(nb::init<const std::string&, std::size_t>(), "module"_a, "idle_max"_a,
           "module: path of a loaded module that is linked with FFmpeg's libraries.")
      .def("decode_pictures", &decode_pictures, "data"_a, "bounds"_a, "packet_bounds"_a, "sizes"_a,
           "rows"_a, "kind_numbers"_a, "turns"_a, "wanted_bounds"_a, "wanted"_a, "places"_a,
           "kinds"_a, "memory"_a, "is_scaled"_a, "threads"_a,
           "Decode frames of groups, RGB. Return the first group that cannot be, and what is wrong "
           "with it.\n\n"
           "rows: the row of each packet's frame; negative: its errors are none.\n"
           "turns: quarters clockwise by which each group's frames become upright.\n"
           "wanted: rows, ascending in each group; a row may come several times.\n"
           "places: the frame of the memory, counted through all of it, for each of these.\n"
           "kinds: FFmpeg's name, what the decoder is given, options.\n"
           "is_scaled: frames of other sizes are scaled; else they are an error.")
      .def("decode_samples", &decode_samples, "kind"_a, "data"_a, "sizes"_a, "packing"_a, "first"_a,
           "out"_a,
           nb::sig("def decode_samples(self, kind: tuple[str, bytes, Sequence[tuple[str, str]]], "
                   "data: numpy.typing.NDArray[numpy.uint8], "
                   "sizes: numpy.typing.NDArray[numpy.int64], packing: str, first: int, "
                   "out: numpy.typing.NDArray[typing.Any]) -> None"),
           "Decode samples, from the number `first` on, into `out`, (samples, channels); ValueError "
           "says what is wrong with the packets.\n\n"
           "packing: \"\" for packets, \"pages\" of Ogg, \"primed\" if of the first page the last "
           "packet alone is given.")
      .def_prop_ro("opened", &DecoderPool::count_opened, "Decoders opened so far.")
      .def_prop_ro("idle", &DecoderPool::list_idle, "Names of the decoders that wait for work.");
}

}  // namespace penstock::binding
