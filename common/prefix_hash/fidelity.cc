#include "common/prefix_hash/fidelity.h"

#include <charconv>
#include <cmath>
#include <utility>

#include "common/base/strings.h"

namespace baton {
namespace {

constexpr std::string_view kBudgetSuffix = "+budget";
constexpr std::string_view kMixed = "mixed";

absl::Status Bad(std::string_view text, std::string_view why) {
  return absl::InvalidArgumentError(fmt::format(
      "fidelity '{}': {}; expected exact, raw:<base> or code:<codec>@<rate>, optionally +budget",
      text, why));
}

bool IsName(std::string_view name) {
  if (name.empty() || name.size() > 128) return false;
  for (const char c : name) {
    const bool fine = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                      c == '_' || c == '-' || c == '.' || c == '/';
    if (!fine) return false;
  }
  return true;
}

// 0 = exact; larger is worse.
int Rank(Fidelity::Kind kind) { return static_cast<int>(kind); }

}  // namespace

Fidelity Fidelity::Raw(std::string base) {
  Fidelity fidelity;
  fidelity.kind_ = Kind::kRaw;
  fidelity.source_ = std::move(base);
  return fidelity;
}

Fidelity Fidelity::Code(std::string codec, double rate) {
  Fidelity fidelity;
  fidelity.kind_ = Kind::kCode;
  fidelity.source_ = std::move(codec);
  fidelity.rate_ = rate;
  return fidelity;
}

Fidelity Fidelity::WithBudget() const {
  Fidelity fidelity = *this;
  fidelity.budget_ = true;
  return fidelity;
}

absl::StatusOr<Fidelity> Fidelity::Parse(std::string_view text) {
  std::string_view rest = text;
  Fidelity fidelity;
  if (rest.ends_with(kBudgetSuffix)) {
    fidelity.budget_ = true;
    rest.remove_suffix(kBudgetSuffix.size());
  }
  if (rest == "exact") return fidelity;
  if (rest.starts_with("raw:")) {
    rest.remove_prefix(4);
    if (!IsName(rest)) return Bad(text, "the base is missing or has a character that names don't");
    fidelity.kind_ = Kind::kRaw;
    fidelity.source_ = rest;
    return fidelity;
  }
  if (!rest.starts_with("code:")) return Bad(text, "unknown kind");
  rest.remove_prefix(5);
  const size_t at = rest.find('@');
  if (at == std::string_view::npos) return Bad(text, "the rate is missing");
  const std::string_view codec = rest.substr(0, at);
  const std::string_view rate = rest.substr(at + 1);
  if (!IsName(codec)) return Bad(text, "the codec is missing or has a character that names don't");
  const auto [end, error] = std::from_chars(rate.data(), rate.data() + rate.size(), fidelity.rate_);
  if (error != std::errc() || end != rate.data() + rate.size() || !std::isfinite(fidelity.rate_) ||
      fidelity.rate_ <= 0) {
    return Bad(text, "the rate is not a number above 0");
  }
  fidelity.kind_ = Kind::kCode;
  fidelity.source_ = codec;
  return fidelity;
}

std::string Fidelity::ToString() const {
  std::string text;
  switch (kind_) {
    case Kind::kExact:
      text = "exact";
      break;
    case Kind::kRaw:
      text = "raw:" + source_;
      break;
    // {} prints the shortest digits that read back to the same double.
    case Kind::kCode:
      text = fmt::format("code:{}@{}", source_, rate_);
      break;
  }
  if (budget_) text += kBudgetSuffix;
  return text;
}

bool Satisfies(const Fidelity& least, const Fidelity& have) {
  if (have.budget() && !least.budget()) return false;
  if (have.kind() == Fidelity::Kind::kExact) return true;
  if (have.kind() != least.kind() || have.source() != least.source()) return false;
  if (have.source() == kMixed) return false;
  return have.kind() == Fidelity::Kind::kRaw || have.rate() >= least.rate();
}

Fidelity Combine(const Fidelity& prefix, const Fidelity& own) {
  const bool own_is_worse = Rank(own.kind()) != Rank(prefix.kind())
                                ? Rank(own.kind()) > Rank(prefix.kind())
                                : own.kind() == Fidelity::Kind::kCode && own.rate() < prefix.rate();
  Fidelity worse = own_is_worse ? own : prefix;
  const Fidelity& other = own_is_worse ? prefix : own;
  const bool same = other.kind() == worse.kind() && other.source() == worse.source();
  if (!same && other.kind() != Fidelity::Kind::kExact) {
    worse = worse.kind() == Fidelity::Kind::kRaw
                ? Fidelity::Raw(std::string(kMixed))
                : Fidelity::Code(std::string(kMixed), worse.rate());
  }
  return prefix.budget() || own.budget() ? worse.WithBudget() : worse;
}

}  // namespace baton
