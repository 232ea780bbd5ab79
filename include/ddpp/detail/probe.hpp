// SPDX-License-Identifier: BSL-1.0
// Named points in the code at which a tool can stop a process or count: static probes in the format that
// SystemTap introduced and perf, bpftrace and gdb understand. A probe is one `nop`, and a note in the program
// file (section .note.stapsdt, which is not loaded) of where it is. An inline function that has been compiled
// several times has several notes of one name.
//
// The note: the sizes of owner and description, type 3, the owner "stapsdt", then the description: the
// address of the nop, that of a byte of the program, by which tools see whether it has been moved after
// linking, that of a semaphore (none), and three strings: provider, name, arguments (none). With "?" the note
// belongs to the group of the code that it is about, and goes where the linker drops that.
#pragma once

#if defined(__linux__) && defined(__ELF__) && defined(__LP64__) && \
    (defined(__x86_64__) || defined(__aarch64__))

#define DDPP_PROBE(name)                                                      \
  asm volatile inline(                                                        \
      "990: nop\n"                                                            \
      ".pushsection .note.stapsdt,\"?\",\"note\"\n"                           \
      ".balign 4\n"                                                           \
      ".4byte 992f-991f, 994f-993f, 3\n"                                      \
      "991: .asciz \"stapsdt\"\n"                                             \
      "992: .balign 4\n"                                                      \
      "993: .8byte 990b, _.stapsdt.base, 0\n"                                 \
      ".asciz \"ddpp\"\n"                                                     \
      ".asciz \"" #name                                                       \
      "\"\n"                                                                  \
      ".asciz \"\"\n"                                                         \
      "994: .balign 4\n"                                                      \
      ".popsection\n"                                                         \
      ".ifndef _.stapsdt.base\n"                                              \
      ".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n" \
      ".weak _.stapsdt.base\n"                                                \
      ".hidden _.stapsdt.base\n"                                              \
      "_.stapsdt.base: .space 1\n"                                            \
      ".size _.stapsdt.base, 1\n"                                             \
      ".popsection\n"                                                         \
      ".endif")

#else

#define DDPP_PROBE(name) static_cast<void>(0)

#endif
