package captionpipeline;

import java.io.IOException;
import java.lang.reflect.InvocationTargetException;
import java.util.Arrays;

/**
 * Runs a program for as long as its standard input stays open: Guarded CLASS ARGUMENTS.
 *
 * <p>Whoever started it holds the other end. If that process is killed, the input closes and the
 * program ends with it, instead of going on for minutes with gigabytes of memory.
 */
public final class Guarded {
  private static final int TERMINATED = 143;

  private Guarded() {}

  public static void main(String[] arguments) throws Throwable {
    Thread watch = new Thread(Guarded::untilClosed);
    watch.setDaemon(true);
    watch.start();
    String[] rest = Arrays.copyOfRange(arguments, 1, arguments.length);
    try {
      Class.forName(arguments[0]).getMethod("main", String[].class).invoke(null, (Object) rest);
    } catch (InvocationTargetException error) {
      throw error.getCause();
    }
  }

  private static void untilClosed() {
    try {
      while (System.in.read() >= 0) {
        continue;
      }
    } catch (IOException error) {
      System.err.println("standard input cannot be read: " + error);
    }
    Runtime.getRuntime().halt(TERMINATED);
  }
}
