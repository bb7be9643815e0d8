// BATON_SANITIZED: 1 in builds with AddressSanitizer or ThreadSanitizer, whose own memory and time
// some tests can't look past.
#pragma once

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define BATON_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define BATON_SANITIZED 1
#endif
#endif

#ifndef BATON_SANITIZED
#define BATON_SANITIZED 0
#endif
