#include "router/route/pair_check.h"

#include <cstdint>

#include "common/base/strings.h"

namespace baton {

std::string SpaceDifference(const v1::Space& want, const v1::Space& have) {
  std::string out;
  const auto text = [&](const char* field, const std::string& a, const std::string& b) {
    if (a.empty() || b.empty() || a == b) return;
    out += Cat(out.empty() ? "" : "; ", field, ": want ", a, ", have ", b);
  };
  const auto number = [&](const char* field, uint32_t a, uint32_t b) {
    if (a != 0 && b != 0) text(field, std::to_string(a), std::to_string(b));
  };
  if (want.kind() != v1::Space::KIND_UNSPECIFIED && have.kind() != v1::Space::KIND_UNSPECIFIED) {
    text("kind", v1::Space::Kind_Name(want.kind()), v1::Space::Kind_Name(have.kind()));
  }
  text("weights_digest", want.weights_digest(), have.weights_digest());
  text("tokenizer_digest", want.tokenizer_digest(), have.tokenizer_digest());
  text("layout.dtype", want.layout().dtype(), have.layout().dtype());
  number("layout.layers", want.layout().layers(), have.layout().layers());
  number("layout.kv_heads", want.layout().kv_heads(), have.layout().kv_heads());
  number("layout.head_dim", want.layout().head_dim(), have.layout().head_dim());
  number("layout.page_rows", want.layout().page_rows(), have.layout().page_rows());
  number("layout.block_tokens", want.layout().block_tokens(), have.layout().block_tokens());
  text("layout.rope", want.layout().rope(), have.layout().rope());
  text("encoder_digest", want.encoder_digest(), have.encoder_digest());
  return out;
}

std::string WhyNotPair(const v1::NodeIdentity& decode, const v1::DecodeModel& model,
                       const v1::PrefillInfo& prefill) {
  const v1::PrefillModel* base = nullptr;
  std::string names;
  for (const v1::PrefillModel& m : prefill.models()) {
    if (m.name() == model.base_model()) base = &m;
    names += Cat(names.empty() ? "" : ", ", "'", m.name(), "'");
  }
  if (base == nullptr) return Cat("it runs ", names, ", not the base '", model.base_model(), "'");
  const uint32_t want = decode.protocol();
  const uint32_t have = prefill.node().protocol();
  if (want != 0 && have != 0 && want != have) {
    return Cat("hand-off protocol: want ", want, ", have ", have);
  }
  return SpaceDifference(model.accepts(), base->space());
}

}  // namespace baton
