// Sentences to click: descriptions of software, which the bundled model was made for.

export const EXAMPLES = [
  ["Names to copy", "This package contains the documentation for GNU Emacs."],
  ["A list", "This package contains the documentation (HTML, PDF, PostScript and man pages)."],
  ["Plain prose", "A small editor for the terminal, written in Python, with support for syntax highlighting."],
  ["Formats", "It can read and write files in MP3, FLAC, Ogg Vorbis, WAV and AIFF format."],
  [
    "Three lines",
    "This package provides the documentation for GNU Emacs.\n" +
      "This package contains the shared libraries for the KDE Plasma desktop.\n" +
      "It provides a library for reading and writing image files.",
  ],
];
