// A codec file: whatever is accepted is whole, and a code made with it decodes.
#include <algorithm>
#include <cmath>
#include <vector>

#include "common/scd/codec.h"
#include "common/scd/decoder.h"
#include "common/scd/encoder.h"
#include "tests/fuzz/fuzz_util.h"

namespace baton {

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const FuzzFile bytes(FuzzText(data, size));
  const auto codec = LoadCodec(bytes.path());
  if (!codec.ok()) {
    CheckError(codec.status());
    FUZZ_CHECK(codec.status().message().find(bytes.path()) != std::string_view::npos);
    return 0;
  }
  FUZZ_CHECK(CheckCodec(*codec).ok());
  const CodecIdentity& id = codec->identity;
  if (id.head_dim % 2 != 0) return 0;  // no model has such heads
  SerialExecutor executor;
  const CodeEncoder encoder(*codec, executor);
  const DecoderRope rope{std::vector<float>(static_cast<size_t>(id.head_dim / 2), 1.0f), 1.0f};
  const CodeDecoder decoder(
      *codec, rope, executor,
      [&id](int, const float* inputs, std::int64_t rows, float* kv, Executor&) {
        const float last = inputs[rows * id.hidden - 1];
        std::fill_n(kv, rows * 2 * id.kv_dim(), last);
      });
  const std::vector<float> rows(static_cast<size_t>(kCodeBlockRows * encoder.row_width()), 0.5f);
  std::vector<float> kv(static_cast<size_t>(kCodeBlockRows * 2 * id.kv_dim()));
  std::vector<float> stream(static_cast<size_t>(kCodeBlockRows * id.hidden));
  for (int layer = 0; layer < id.layers; ++layer) {
    const CodeCut::Layer& whole = encoder.whole().layers[static_cast<size_t>(layer)];
    std::vector<std::byte> codes(whole.block_bytes);
    encoder.Encode(layer, rows.data(), encoder.row_width(), 4, codes.data(), executor);
    if (!decoder.run().contains(layer)) {
      decoder.Decode(layer, codes.data(), whole.components, 0, kv.data(), executor);
    } else if (layer == decoder.run().begin) {
      decoder.DecodeStream(codes.data(), whole.components, stream.data(), executor);
    }
  }
  return 0;
}

}  // namespace baton
