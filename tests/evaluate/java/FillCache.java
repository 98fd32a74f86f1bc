import edu.anu.spice.LmdbTupleDB;
import java.io.FileReader;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.Map;
import org.json.simple.JSONObject;
import org.json.simple.parser.JSONParser;

/** Puts captions with given tuples into SPICE's cache: FillCache TUPLES.json FOLDER. */
public final class FillCache {
  @SuppressWarnings("unchecked")
  public static void main(String[] arguments) throws Exception {
    JSONObject given = (JSONObject) new JSONParser().parse(new FileReader(arguments[0]));
    Map<String, ArrayList<ArrayList<String>>> tuples = new HashMap<>();
    for (Map.Entry<String, Iterable<Iterable<String>>> caption :
        ((Map<String, Iterable<Iterable<String>>>) given).entrySet()) {
      ArrayList<ArrayList<String>> all = new ArrayList<>();
      for (Iterable<String> words : caption.getValue()) {
        ArrayList<String> tuple = new ArrayList<>();
        words.forEach(tuple::add);
        all.add(tuple);
      }
      tuples.put(caption.getKey(), all);
    }
    new LmdbTupleDB(arguments[1]).putTransaction(tuples);
  }
}
