// Do a decode node's model and a prefill node fit together? Pure.
#pragma once

#include <string>

#include "proto/common.pb.h"
#include "proto/decode.pb.h"
#include "proto/prefill.pb.h"

namespace baton {

// Every field of what the prefill node sends that is not what the decode node can import, with both
// values: "layout.layers: want 3, have 4". Empty: they fit. Fields that one side leaves out (an
// older version's, or weights where any will do) are not compared. What may differ and is not
// compared: names, versions of the program, memory, threads, limits of length.
std::string SpaceDifference(const v1::Space& want, const v1::Space& have);

// Why `prefill` can't serve the base of `model`, a model of `decode`: it runs no such base, speaks
// another hand-off protocol, or its space differs. Empty: it can.
std::string WhyNotPair(const v1::NodeIdentity& decode, const v1::DecodeModel& model,
                       const v1::PrefillInfo& prefill);

}  // namespace baton
