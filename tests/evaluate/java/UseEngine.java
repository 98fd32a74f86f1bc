import javax.script.ScriptEngine;
import javax.script.ScriptEngineManager;
import javax.script.ScriptException;

/** Asks for a JavaScript engine as SPICE does, and for what the stand-in must refuse. */
public final class UseEngine {
  public static void main(String[] arguments) throws Exception {
    ScriptEngine engine = new ScriptEngineManager().getEngineByName("JavaScript");
    engine.put("jsonString", "{\"a\": [1, null]}");
    engine.eval("result = JSON.stringify(JSON.parse(jsonString), null, 2)");
    System.out.println(engine.get("result"));
    for (String script : new String[] {"1 + 1", "result = jsonString"}) {
      try {
        System.out.println(engine.eval(script));
      } catch (ScriptException refused) {
        System.out.println("refused");
      }
    }
  }
}
