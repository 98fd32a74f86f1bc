package captionpipeline;

import edu.cmu.meteor.scorer.MeteorConfiguration;
import edu.cmu.meteor.scorer.MeteorScorer;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.regex.Pattern;

/**
 * METEOR 1.5 as its own `-stdio -l en -norm -a TABLE` runs it, on several threads: MeteorServer
 * TABLE.
 *
 * <p>In come lines of an image each, REFERENCE ||| ... ||| CANDIDATE; an empty line asks for the
 * answers, which are METEOR's 23 numbers of each.
 */
public final class MeteorServer {
  private static final int MOST_THREADS = 4;

  private final ThreadLocal<MeteorScorer> scorers; // they share their dictionaries

  private MeteorServer(String table) {
    Properties settings = new Properties();
    settings.setProperty("language", "en");
    settings.setProperty("paraFile", table);
    MeteorScorer scorer = new MeteorScorer(new MeteorConfiguration(settings));
    scorers = ThreadLocal.withInitial(() -> new MeteorScorer(scorer));
  }

  public static void main(String[] arguments)
      throws IOException, InterruptedException, ExecutionException {
    MeteorServer server = new MeteorServer(arguments[0]);
    int threads = Math.min(MOST_THREADS, Runtime.getRuntime().availableProcessors());
    ExecutorService pool = Executors.newFixedThreadPool(threads);
    try {
      server.serve(pool);
    } finally {
      pool.shutdownNow();
    }
  }

  private void serve(ExecutorService pool)
      throws IOException, InterruptedException, ExecutionException {
    BufferedReader in =
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    PrintStream out = new PrintStream(System.out, false, "UTF-8");
    List<Future<String>> answers = new ArrayList<>();
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      if (!line.isEmpty()) {
        String image = line;
        answers.add(pool.submit(() -> score(image)));
        continue;
      }
      for (Future<String> answer : answers) {
        out.println(answer.get());
      }
      out.flush();
      answers.clear();
    }
  }

  private String score(String line) {
    String[] texts = line.split(Pattern.quote(Normalized.SEPARATOR), -1);
    ArrayList<String> references = new ArrayList<>();
    for (int at = 0; at < texts.length - 1; at++) {
      references.add(Normalized.text(texts[at].trim()));
    }
    String candidate = Normalized.text(texts[texts.length - 1].trim());
    return scorers.get().getMeteorStats(candidate, references).toString();
  }
}
