// How true stored K/V is to what the consumer would have computed itself.
//
//   exact                 the consumer's own arithmetic over its own prefix
//   raw:<base>            a base model's raw K/V, taken over unchanged
//   code:<codec>@<rate>   decoded from semantic codes at that rate
//   ...+budget            and then cut by a memory budget
//
// It is part of the native key and inherited by every later block of the chain. Thread-safe (pure).
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace baton {

class Fidelity {
 public:
  enum class Kind { kExact, kRaw, kCode };

  Fidelity() = default;  // exact
  static Fidelity Exact() { return Fidelity(); }
  // `base`: digest of the base weights; non-empty, without '+' and '@' (asserted by Parse only).
  static Fidelity Raw(std::string base);
  // `rate` > 0, finite; bits per value (or what the codec calls its rate).
  static Fidelity Code(std::string codec, double rate);
  // The printed form above. INVALID_ARGUMENT naming what is wrong.
  static absl::StatusOr<Fidelity> Parse(std::string_view text);

  Kind kind() const { return kind_; }
  const std::string& source() const { return source_; }  // base or codec; empty for exact
  double rate() const { return rate_; }                  // kCode only, else 0
  bool budget() const { return budget_; }
  Fidelity WithBudget() const;
  std::string ToString() const;  // Parse(ToString()) is the same value

  friend bool operator==(const Fidelity&, const Fidelity&) = default;

 private:
  Kind kind_ = Kind::kExact;
  std::string source_;
  double rate_ = 0;
  bool budget_ = false;
};

// May `have` serve a request that accepts at least `least`? Exact serves everything; raw needs the
// same base; code the same codec at its rate or better (raw of another kind never serves code, nor
// the reverse; "mixed" serves nobody); a `have` cut by a budget only serves a `least` that allows a
// budget.
bool Satisfies(const Fidelity& least, const Fidelity& have);

// Fidelity of blocks computed with `own` on top of a prefix of fidelity `prefix`: the worse one
// (the approximate one, then the lower rate); the budget flag is sticky. Two different
// approximations (raw and code, two bases, two codecs) don't compare: the result is called
// raw:mixed or code:mixed@<rate> and serves nobody, since no request can have meant both.
Fidelity Combine(const Fidelity& prefix, const Fidelity& own);

}  // namespace baton
