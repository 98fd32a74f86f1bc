package captionpipeline;

import java.io.BufferedReader;
import java.io.FileInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.StringTokenizer;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.BlockingQueue;
import java.util.zip.Deflater;
import java.util.zip.GZIPInputStream;
import java.util.zip.GZIPOutputStream;

/**
 * Cuts METEOR's paraphrase table down to the data at hand: CutTable TABLE, in and out by the
 * standard streams.
 *
 * <p>In come the references, a line each, a line with the separator alone, and the candidates. Out
 * goes the table of the pairs of which one phrase can stand in a reference and the other in a
 * candidate: all its words and neighbours do.
 *
 * <p>Table: gzip, three lines per pair: probability, phrase, phrase; words joined by one blank.
 */
public final class CutTable {
  private static final int REFERENCES = 1;
  private static final int CANDIDATES = 2;
  private static final int BOTH = REFERENCES | CANDIDATES;
  private static final int BLOCK = 1 << 16; // bytes

  private final Places places = new Places();
  private final byte[] first = new byte[2 * BLOCK]; // phrase of the pair before, mostly the same
  private int firstLength = -1;
  private int firstPlaces;

  private CutTable() {}

  public static void main(String[] arguments) throws IOException {
    CutTable cut = new CutTable();
    cut.read(System.in);
    try (OutputStream kept = new FastGzip(System.out)) {
      cut.copy(new Unpacked(arguments[0]), kept);
    }
  }

  private static final class FastGzip extends GZIPOutputStream {
    FastGzip(OutputStream out) throws IOException {
      super(out, BLOCK);
      def.setLevel(Deflater.BEST_SPEED);
    }
  }

  private void read(InputStream in) throws IOException {
    BufferedReader lines = new BufferedReader(new InputStreamReader(in, StandardCharsets.UTF_8));
    int place = REFERENCES;
    for (String line = lines.readLine(); line != null; line = lines.readLine()) {
      if (line.equals(Normalized.SEPARATOR)) {
        place = CANDIDATES;
      } else {
        add(line, place);
      }
    }
  }

  /** Adds the words of a caption and its pairs of neighbours. */
  private void add(String caption, int place) {
    long before = 0; // the word before and a blank
    StringTokenizer words = new StringTokenizer(Normalized.text(caption));
    for (boolean isFirst = true; words.hasMoreTokens(); isFirst = false) {
      byte[] word = words.nextToken().getBytes(StandardCharsets.UTF_8);
      long alone = Places.with(Places.NOTHING, word);
      places.add(alone, place);
      if (!isFirst) {
        places.add(Places.with(before, word), place);
      }
      before = Places.with(alone, (byte) ' ');
    }
  }

  private void copy(Unpacked table, OutputStream kept) throws IOException {
    byte[] text = new byte[first.length];
    int length = 0;
    for (byte[] block = table.next(); block.length > 0; block = table.next()) {
      System.arraycopy(block, 0, text, length, block.length);
      length += block.length;
      int done = copyPairs(text, length, kept);
      length -= done;
      System.arraycopy(text, done, text, 0, length);
      if (length > BLOCK) {
        throw new IOException("a pair of more than " + BLOCK + " bytes; this is no such table");
      }
    }
    if (length > 0) {
      throw new IOException("the table ends in the middle of a pair");
    }
  }

  /** Copies the pairs to be kept of all whole ones; returns where these end. */
  private int copyPairs(byte[] text, int length, OutputStream kept) throws IOException {
    int start = 0;
    while (true) {
      int one = lineEnd(text, start, length);
      int two = lineEnd(text, one + 1, length);
      int end = lineEnd(text, two + 1, length);
      if (end >= length) {
        return start;
      }
      if (!isFirst(text, one + 1, two)) {
        firstLength = two - one - 1;
        System.arraycopy(text, one + 1, first, 0, firstLength);
        firstPlaces = placesOf(text, one + 1, two);
      }
      if (firstPlaces != 0) {
        int secondPlaces = placesOf(text, two + 1, end);
        if (secondPlaces != 0 && (firstPlaces | secondPlaces) == BOTH) {
          kept.write(text, start, end + 1 - start);
        }
      }
      start = end + 1;
    }
  }

  private static int lineEnd(byte[] text, int from, int length) {
    int at = from;
    while (at < length && text[at] != '\n') {
      at++;
    }
    return at;
  }

  private boolean isFirst(byte[] text, int start, int end) {
    if (end - start != firstLength) {
      return false;
    }
    for (int k = firstLength - 1; k >= 0; k--) {
      if (text[start + k] != first[k]) {
        return false;
      }
    }
    return true;
  }

  /** In which of references and candidates the phrase can stand. */
  private int placesOf(byte[] text, int start, int end) {
    int found = BOTH;
    long word = Places.NOTHING;
    long pair = Places.NOTHING; // the word before, a blank and the word
    boolean isFirst = true;
    for (int at = start; at <= end; at++) {
      if (at < end && text[at] != ' ') {
        word = Places.with(word, text[at]);
        pair = Places.with(pair, text[at]);
        continue;
      }
      found &= places.of(word);
      if (found != 0 && !isFirst) {
        found &= places.of(pair);
      }
      if (found == 0) {
        return 0;
      }
      pair = Places.with(word, (byte) ' ');
      word = Places.NOTHING;
      isFirst = false;
    }
    return found;
  }

  /** A gzip file in blocks, unpacked by a thread of its own; an empty block is its end. */
  private static final class Unpacked {
    private static final int AHEAD = 16; // blocks

    private final BlockingQueue<byte[]> blocks = new ArrayBlockingQueue<>(AHEAD);
    private volatile IOException failure;

    Unpacked(String path) {
      Thread thread = new Thread(() -> unpack(path));
      thread.setDaemon(true);
      thread.start();
    }

    byte[] next() throws IOException {
      try {
        byte[] block = blocks.take();
        if (failure != null) {
          throw failure;
        }
        return block;
      } catch (InterruptedException error) {
        throw new IOException(error);
      }
    }

    private void unpack(String path) {
      try {
        byte[] block = new byte[BLOCK];
        try (InputStream in = new GZIPInputStream(new FileInputStream(path), BLOCK)) {
          for (int got = in.read(block); got > 0; got = in.read(block)) {
            blocks.put(Arrays.copyOf(block, got));
          }
        } catch (IOException error) {
          failure = error;
        }
        blocks.put(new byte[0]);
      } catch (InterruptedException error) {
        Thread.currentThread().interrupt(); // the program ends, and nobody waits
      }
    }
  }

  /**
   * Places of words and pairs, found by their hashes of 64 bits. Two texts of one hash are as
   * unlikely as a broken memory, and would keep a needless pair.
   */
  private static final class Places {
    static final long NOTHING = 0xcbf29ce484222325L;
    private static final long PRIME = 0x100000001b3L;

    private long[] hashes = new long[1 << 16];
    private byte[] found = new byte[hashes.length];
    private int held;

    /** The hash of a text and one byte more (Fowler, Noll and Vo's 1a). */
    static long with(long hash, byte letter) {
      return (hash ^ (letter & 0xff)) * PRIME;
    }

    static long with(long hash, byte[] letters) {
      long all = hash;
      for (byte letter : letters) {
        all = with(all, letter);
      }
      return all;
    }

    void add(long hash, int place) {
      int slot = slot(hash);
      if (found[slot] == 0 && 2 * ++held > hashes.length) {
        grow();
        slot = slot(hash);
      }
      hashes[slot] = hash;
      found[slot] |= place;
    }

    int of(long hash) {
      return found[slot(hash)];
    }

    /** Where the hash is, or is to be. */
    private int slot(long hash) {
      int slot = (int) (hash ^ hash >>> 32) & hashes.length - 1;
      while (found[slot] != 0 && hashes[slot] != hash) {
        slot = slot + 1 & hashes.length - 1;
      }
      return slot;
    }

    private void grow() {
      long[] oldHashes = hashes;
      byte[] oldFound = found;
      hashes = new long[2 * oldHashes.length];
      found = new byte[hashes.length];
      for (int slot = 0; slot < oldHashes.length; slot++) {
        if (oldFound[slot] != 0) {
          int place = slot(oldHashes[slot]);
          hashes[place] = oldHashes[slot];
          found[place] = oldFound[slot];
        }
      }
    }
  }
}
