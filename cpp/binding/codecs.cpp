// FFmpeg's decoders on packets, without the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "binding/arrays.hpp"
#include "binding/gil.hpp"
#include "codecs/packet_decoder.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace penstock::binding {
namespace {

using codecs::PacketDecoder;
using Bytes = Column<std::uint8_t>;
using Rgb = nb::ndarray<std::uint8_t, nb::shape<-1, -1, -1, 3>, nb::device::cpu>;

void raise_problem(const std::string& problem) {
  if (!problem.empty()) throw nb::value_error(problem.c_str());
}

void decode_pictures(PacketDecoder& decoder, const Bytes& data, const Ints& sizes, const Ints& rows,
                     const Ints& wanted, const Rgb& out, bool is_scaled) {
  if (sizes.size() != rows.size() || out.shape(0) != wanted.size())
    throw nb::value_error("lengths differ");
  const codecs::Pictures pictures{out.data(),
                                  {out.stride(0), out.stride(1), out.stride(2), out.stride(3)},
                                  static_cast<int>(out.shape(1)),
                                  static_cast<int>(out.shape(2))};
  std::string problem;
  {
    const WithoutGil released;
    problem = decoder.decode_pictures({view_bytes(data), view(sizes), view(rows)}, view(wanted),
                                      pictures, is_scaled);
  }
  raise_problem(problem);
}

void decode_samples(PacketDecoder& decoder, const Bytes& data, const Ints& sizes,
                    const std::string& packing, std::int64_t first,
                    const nb::ndarray<nb::ndim<2>, nb::c_contig, nb::device::cpu>& out) {
  constexpr char kinds[] = "iuf";  // as DLPack numbers them
  const codecs::Samples samples{static_cast<std::byte*>(out.data()), out.shape(0), out.shape(1),
                                out.itemsize(),
                                out.dtype().code < 3 ? kinds[out.dtype().code] : ' '};
  const auto way = packing == "primed"  ? codecs::Packing::primed
                   : packing == "pages" ? codecs::Packing::pages
                                        : codecs::Packing::none;
  std::string problem;
  {
    const WithoutGil released;
    problem = decoder.decode_samples({view_bytes(data), view(sizes), {}}, way, first, samples);
  }
  raise_problem(problem);
}

}  // namespace

void bind_codecs(nb::module_& m) {
  nb::class_<PacketDecoder>(m, "PacketDecoder",
                            "A decoder of FFmpeg's, by its name there, for one thread at a time. "
                            "After an error it is in no known state.")
      .def(
          "__init__",
          [](PacketDecoder* self, const std::string& module, const std::string& name,
             const nb::bytes& config, const PacketDecoder::Options& options) {
            const auto* data = static_cast<const std::byte*>(config.data());
            new (self) PacketDecoder(module, name, {data, config.size()}, options);
          },
          "module"_a, "name"_a, "config"_a, "options"_a,
          "module: path of a loaded module that is linked with FFmpeg's libraries.")
      .def("decode_pictures", &decode_pictures, "data"_a, "sizes"_a, "rows"_a, "wanted"_a, "out"_a,
           "is_scaled"_a,
           "Decode the frames of the wanted rows, ascending, into `out`, RGB; ValueError says what "
           "is wrong with the packets.\n\n"
           "rows: the row of each packet's frame; negative: its errors are none.\n"
           "is_scaled: frames of other sizes are scaled; else they are an error.")
      .def("decode_samples", &decode_samples, "data"_a, "sizes"_a, "packing"_a, "first"_a, "out"_a,
           nb::sig("def decode_samples(self, data: numpy.typing.NDArray[numpy.uint8], "
                   "sizes: numpy.typing.NDArray[numpy.int64], packing: str, first: int, "
                   "out: numpy.typing.NDArray[typing.Any]) -> None"),
           "Decode samples, from the number `first` on, into `out`, (samples, channels); ValueError "
           "says what is wrong with the packets.\n\n"
           "packing: \"\" for packets, \"pages\" of Ogg, \"primed\" if of the first page the last "
           "packet alone is given.");
}

}  // namespace penstock::binding
