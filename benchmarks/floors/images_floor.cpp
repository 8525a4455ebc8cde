// Decode, crop, resize and mirror by libjpeg's crop and skip: the floor of a random crop of a JPEG.
//
//   images_floor LIST    each line of LIST: path, left, top, width, height, 0 or 1 if mirrored; all to
//                        224 x 224. For each line on stdin: one pass over all of them; prints their
//                        number and processor nanoseconds.
//
// The resize is penstock's, so that what is compared is the decoding.
#include <cstdio>

#if __has_include(<jpeglib.h>)
#include <jpeglib.h>
#include <setjmp.h>

#include <algorithm>
#include <cstdint>
#include <ctime>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "images/resample.hpp"

namespace {

struct Sample {
  std::string file;
  unsigned left, top, width, height, flip;
};

std::int64_t processor_ns() {
  std::timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

struct Failure {
  jpeg_error_mgr manager;
  jmp_buf jump;
};

void fail(j_common_ptr common) { longjmp(reinterpret_cast<Failure*>(common->err)->jump, 1); }

// The crop's pixels, 3 bytes each; the first of them and the distance of rows. False for other files.
bool decode(const Sample& sample, std::vector<std::uint8_t>& rows, std::size_t& first,
            std::size_t& stride) {
  jpeg_decompress_struct info;
  Failure failure;
  info.err = jpeg_std_error(&failure.manager);
  failure.manager.error_exit = fail;
  if (setjmp(failure.jump) != 0) {
    jpeg_destroy_decompress(&info);
    return false;
  }
  jpeg_create_decompress(&info);
  jpeg_mem_src(&info, reinterpret_cast<const unsigned char*>(sample.file.data()),
               sample.file.size());
  jpeg_read_header(&info, TRUE);
  info.out_color_space = JCS_RGB;
  jpeg_start_decompress(&info);
  // A column more on each side, or the edges of upsampled chroma differ from a whole decode.
  JDIMENSION left = sample.left == 0 ? 0 : sample.left - 1;
  JDIMENSION width = std::min(info.output_width, sample.left + sample.width + 1) - left;
  jpeg_crop_scanline(&info, &left, &width);
  stride = std::size_t{width} * 3;
  rows.resize(stride * sample.height);
  if (sample.top != 0) jpeg_skip_scanlines(&info, sample.top);
  for (unsigned row = 0; row < sample.height; ++row) {
    JSAMPROW line = rows.data() + stride * row;
    jpeg_read_scanlines(&info, &line, 1);
  }
  jpeg_abort_decompress(&info);
  jpeg_destroy_decompress(&info);
  first = (sample.left - left) * 3;
  return true;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) return 2;
  using namespace penstock::images;
  std::ifstream list(arguments[1]);
  std::vector<Sample> samples;
  for (std::string line; std::getline(list, line);) {
    std::istringstream words(line);
    Sample sample;
    std::string path;
    words >> path >> sample.left >> sample.top >> sample.width >> sample.height >> sample.flip;
    std::ifstream file(path, std::ios::binary);
    sample.file.assign(std::istreambuf_iterator<char>(file), {});
    if (!words || sample.file.empty()) return 1;
    samples.push_back(std::move(sample));
  }
  std::vector<std::uint8_t> rows, out(224 * 224 * 3);
  ResampleScratch scratch;
  while (std::getchar() == '\n') {
    const std::int64_t began = processor_ns();
    std::size_t made = 0;
    for (const Sample& sample : samples) {
      std::size_t first, stride;
      if (!decode(sample, rows, first, stride)) continue;
      const Resize resize =
          make_resize(sample.height, sample.width, 224, 224, 0, 0, 224, 224);
      Target target;
      target.pixels = out.data();
      target.flip_columns = sample.flip != 0;
      resample({rows.data() + first + resize.vertical.first_source * stride +
                    resize.horizontal.first_source * 3,
                stride},
               resize, target, scratch);
      ++made;
    }
    std::printf("%zu %lld\n", made, static_cast<long long>(processor_ns() - began));
    std::fflush(stdout);
  }
}

#else

int main() {
  std::fprintf(stderr, "built without libjpeg's headers\n");
  return 3;
}

#endif
