// Nodes with codecs, and what they should say: the same codes made and read without any node.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <numeric>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "common/model/kv_projection.h"
#include "common/model/model_weights.h"
#include "common/model/single_sequence.h"
#include "common/scd/decoder.h"
#include "common/scd/encoder.h"
#include "tests/decode_node/serve/node_pair.h"
#include "tests/support/tiny_codec.h"

namespace baton {

class CodesTest : public NodePair {
 protected:
  // A codec file of `producer` and `consumer`, folders below dir_.
  std::string WriteCodec(const std::string& producer, const std::string& consumer,
                         CodeSource source, const std::set<std::size_t>& patched = {},
                         LayerRun run = {}) {
    const auto opened = ModelSource::Open((dir_ / producer).string());
    EXPECT_TRUE(opened.ok()) << opened.status();
    const auto tokenizer = Tokenizer::FromJson((*opened)->tokenizer_json());
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    codec_ = TinyCodec((dir_ / producer).string(), source, (dir_ / consumer).string(),
                       (*tokenizer)->digest(), patched, run);
    const std::string path =
        (dir_ / absl::StrCat(producer, "-", consumer, "-", CodeSourceName(source), patched.size(),
                             "-", run.size()))
            .string();
    EXPECT_TRUE(SaveCodec(codec_, path).ok());
    return path;
  }
  ModelEntry EntryWith(const std::string& name, const std::string& folder,
                       std::vector<std::string> codecs) const {
    ModelEntry entry = Entry(name, folder);
    entry.base_model = "base";
    entry.codecs = std::move(codecs);
    return entry;
  }
  Answer Reuse(const std::vector<std::int64_t>& prompt, const std::string& producer) {
    return Ask(Request("m", prompt, "reuse", {producer}));
  }

  std::shared_ptr<const Model> LoadModel(const std::string& folder) {
    const auto source = ModelSource::Open((dir_ / folder).string());
    EXPECT_TRUE(source.ok()) << source.status();
    auto model = Model::Load(**source, {.executor = &executor_});
    EXPECT_TRUE(model.ok()) << model.status();
    return *model;
  }

  // The answer of `consumer` over its own first 4 rows, what codec_ makes of the producer's states
  // up to row `end`, and its own rows after that.
  std::vector<std::int64_t> WithoutNodes(const std::string& producer, const std::string& consumer,
                                         const std::vector<std::int64_t>& prompt, int end) {
    const std::vector<std::int32_t> tokens(prompt.begin(), prompt.end());
    const auto from = LoadModel(producer), to = LoadModel(consumer);
    const ModelConfig& config = to->config();
    const auto layers = static_cast<int>(config.layers);
    const int blocks = (end + kCodeBlockRows - 1) / kCodeBlockRows;
    auto own = SingleSequence::Create(config, DType::kF32, blocks * kCodeBlockRows);
    tiny_codec_internal::Watcher states(config, codec_.identity.source);
    ForwardPass producing(from, nullptr, executor_);
    Run(producing, {tokens.data(), static_cast<std::size_t>(blocks * kCodeBlockRows)}, 0, **own,
        &states);

    const CodeEncoder encoder(codec_, executor_);
    const KvProjection projection(to, nullptr, kNoAdapter, executor_);
    const CodeDecoder decoder(codec_, RopeOf(*to), executor_,
                              [&](int layer, const float* inputs, std::int64_t rows, float* kv,
                                  Executor& e) { projection.Project(layer, inputs, rows, kv, e); });
    auto sequence = SingleSequence::Create(config, DType::kF32, 1024);
    ForwardPass pass(to, nullptr, executor_);
    Run(pass, {tokens.data(), 4}, 0, **sequence, nullptr);
    std::vector<std::int32_t> positions(static_cast<std::size_t>(end - 4));
    std::iota(positions.begin(), positions.end(), 4);
    const std::int64_t ld = 2 * decoder.kv_dim();
    for (int layer = 0; layer < layers; ++layer) {
      const CodeCut::Layer& whole = encoder.whole().layers[static_cast<std::size_t>(layer)];
      if (decoder.run().contains(layer)) {
        if (layer > decoder.run().begin) continue;
        std::vector<float> stream = StreamOf(encoder, decoder, states, blocks);
        const SequenceSlice slice{0, end - 4, &(*sequence)->view(), kNoAdapter};
        pass.RunLayers(layer, decoder.run().end, stream.data() + 4 * config.hidden,
                       {.positions = positions, .sequences = {&slice, 1}}, nullptr);
        continue;
      }
      std::vector<std::byte> codes(whole.block_bytes);
      std::vector<float> kv(static_cast<std::size_t>(blocks * kCodeBlockRows * ld));
      for (int b = 0; b < blocks; ++b) {
        const float* rows = states.rows(static_cast<std::size_t>(layer)).data();
        encoder.Encode(layer, rows + b * kCodeBlockRows * encoder.width(), encoder.width(),
                       b == 0 ? 4 : 0, codes.data(), executor_);
        decoder.Decode(layer, codes.data(), whole.components, b * kCodeBlockRows,
                       kv.data() + b * kCodeBlockRows * ld, executor_);
      }
      (*sequence)->view().Append(layer, {.k = kv.data() + 4 * ld,
                                         .ldk = ld,
                                         .v = kv.data() + 4 * ld + decoder.kv_dim(),
                                         .ldv = ld,
                                         .positions = positions});
    }
    std::vector<std::int64_t> answer;
    std::vector<std::int32_t> next(tokens.begin() + end, tokens.end());
    for (int at = end; answer.size() < 12;) {
      const float* hidden = Run(pass, next, at, **sequence, nullptr);
      at += static_cast<int>(next.size());
      const std::int32_t last = static_cast<std::int32_t>(next.size()) - 1;
      const float* logits = pass.Logits(hidden, {&last, 1});
      answer.push_back(std::max_element(logits, logits + config.vocab) - logits);
      next = {static_cast<std::int32_t>(answer.back())};
    }
    return answer;
  }

  Codec codec_;
  SerialExecutor executor_;

 private:
  // What the codes of `blocks` blocks say of the stream that enters the run.
  std::vector<float> StreamOf(const CodeEncoder& encoder, const CodeDecoder& decoder,
                              const tiny_codec_internal::Watcher& states, int blocks) {
    const int layer = decoder.run().begin;
    const auto l = static_cast<std::size_t>(layer);
    const auto hidden = static_cast<std::size_t>(decoder.hidden());
    const CodeCut::Layer& whole = encoder.whole().layers[l];
    std::vector<std::byte> codes(whole.block_bytes);
    std::vector<float> stream(static_cast<std::size_t>(blocks * kCodeBlockRows) * hidden);
    for (int b = 0; b < blocks; ++b) {
      std::vector<float> rows;
      for (std::size_t r = 0; r < kCodeBlockRows; ++r) {
        const std::size_t row = static_cast<std::size_t>(b) * kCodeBlockRows + r;
        const auto x = states.rows(l).begin() + static_cast<std::ptrdiff_t>(row * hidden);
        rows.insert(rows.end(), x, x + static_cast<std::ptrdiff_t>(hidden));
        rows.push_back(states.rms(l)[row]);
      }
      encoder.Encode(layer, rows.data(), encoder.row_width(), b == 0 ? 4 : 0, codes.data(),
                     executor_);
      decoder.DecodeStream(codes.data(), whole.components,
                           stream.data() + static_cast<std::size_t>(b * kCodeBlockRows) * hidden,
                           executor_);
    }
    return stream;
  }
  static DecoderRope RopeOf(const Model& model) {
    return {model.weights().inv_freq, static_cast<float>(model.config().rope.attention_factor)};
  }
  static const float* Run(ForwardPass& pass, std::span<const std::int32_t> tokens, int first,
                          SingleSequence& sequence, CaptureHook* hook) {
    std::vector<std::int32_t> positions(tokens.size());
    std::iota(positions.begin(), positions.end(), first);
    const SequenceSlice slice{0, static_cast<std::int32_t>(tokens.size()), &sequence.view(),
                              kNoAdapter};
    float* h = pass.Embed(tokens);
    pass.RunLayers(0, sequence.table().layers(), h,
                   {.positions = positions, .sequences = {&slice, 1}}, hook);
    return h;
  }
};

}  // namespace baton
