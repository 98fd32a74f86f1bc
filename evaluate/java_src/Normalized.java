package captionpipeline;

import edu.cmu.meteor.util.Constants;
import edu.cmu.meteor.util.Normalizer;
import java.util.Locale;

/** Captions as METEOR 1.5 scores them with `-l en -norm`. */
final class Normalized {
  /** What parts captions of one line; none holds it. */
  static final String SEPARATOR = "|||";

  private static final int ENGLISH = Constants.getLanguageID("english");

  private Normalized() {}

  /**
   * The caption in METEOR's words. Its tokenizer takes a third of the time of scoring and is spared
   * the captions of lower-case ASCII words, which it leaves as they are.
   */
  static String text(String caption) {
    for (int at = 0; at < caption.length(); at++) {
      char c = caption.charAt(at);
      if (c != ' ' && (c < '0' || c > '9') && (c < 'a' || c > 'z')) {
        return Normalizer.normalizeLine(caption, ENGLISH, true).toLowerCase(Locale.ENGLISH);
      }
    }
    return caption;
  }
}
